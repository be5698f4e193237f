package bench

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestIdentify: the host identifier is the UUID of the host NQN. It is random if there is no UUID
// or if it is 0, which targets refuse.
func TestIdentify(t *testing.T) {
	const zero = "00000000-0000-0000-0000-000000000000"
	identify := func(nqn string) [16]byte {
		var o host.Options
		err := (&Connection{HostNQN: nqn}).identify(&o)
		testutil.True(t, err == nil && o.HostNQN == nqn, "%s: %s, %v", nqn, o.HostNQN, err)
		return o.HostID
	}
	testutil.Equal(t, identify(nvme.UUIDPrefix+strings.Replace(zero, "0", "1", 1)), [16]byte{0x10},
		"of a UUID")
	for _, nqn := range []string{nvme.UUIDPrefix + zero, "nqn.2026-11.io.example:host"} {
		if a, b := identify(nqn), identify(nqn); a == [16]byte{} || a == b {
			t.Errorf("of %s: %x, %x", nqn, a, b)
		}
	}
}

// TestNames: a subsystem and a host may have any name that a target accepts.
func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"hostnqn": true, "nqn.io-1": true, "a b/c": true, "nqn.2008-04.org.example.lan.host1": true,
		"": false, "a\nb": false, strings.Repeat("a", 224): false,
	} {
		c := Connection{
			Transport: "tcp", Address: "127.0.0.1:4420", Subsystem: name, HostNQN: "me", NSID: 1,
			Timeout: 1,
		}
		_, err := c.options(t.Context())
		testutil.True(t, (err == nil) == ok, "--subsystem %q: %v", name, err)
		c.Subsystem, c.HostNQN = "it", name
		_, err = c.options(t.Context())
		testutil.True(t, (err == nil) == (ok || name == ""), "--host-nqn %q: %v", name, err)
	}
}
