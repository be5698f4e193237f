package httpd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestFamilies: [::] serves both families, and any other address its own. A peer of IPv4 has an
// address of IPv4.
func TestFamilies(t *testing.T) {
	for at, serves := range map[string]map[string]bool{
		"[::]":               {"127.0.0.1": true, "::1": true},
		"0.0.0.0":            {"127.0.0.1": true, "::1": false},
		"[::1]":              {"127.0.0.1": false, "::1": true},
		"[::ffff:127.0.0.1]": {"127.0.0.1": true, "::1": false},
	} {
		at = fmt.Sprint(at, ":", testutil.FreePort(t)) // which nobody has in another family
		l, err := Listen(netip.MustParseAddrPort(at))
		if errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Log("this kernel has no IPv6")
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for ip, want := range serves {
			to := netip.AddrPortFrom(netip.MustParseAddr(ip),
				l.Addr().(*net.TCPAddr).AddrPort().Port())
			c, err := net.Dial("tcp", to.String())
			testutil.True(t, (err == nil) == want, "%s is reached at %s: %v, want %v", at, ip, err,
				want)
			if err != nil {
				continue
			}
			peer := testutil.Value(l.Accept())(t)
			if got := Remote(peer); got.String() != c.LocalAddr().String() {
				t.Errorf("%s: the peer is %v, want %v", at, got, c.LocalAddr())
			}
			_, _ = peer.Close(), c.Close()
		}
		testutil.Check(t, l.Close())
	}
}
