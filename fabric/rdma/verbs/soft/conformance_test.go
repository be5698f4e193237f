package soft

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbsconf"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// quick are the times of a network in memory.
var quick = cm.Options{ResponseTimeout: 12, AckTimeout: 15, Replies: 16}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name    string
		faults  wire.MemoryOptions
		engines int
	}{
		{"no loss", wire.MemoryOptions{}, 1},
		{"four engines", wire.MemoryOptions{}, 4},
		{"1 % loss", wire.MemoryOptions{Loss: 0.01}, 1},
		{"15 % loss", wire.MemoryOptions{Loss: 0.15}, 1},
	} {
		t.Run(c.name, func(t *testing.T) { conformance(t, c.faults, c.engines) })
	}
}

func conformance(t *testing.T, faults wire.MemoryOptions, engines int) {
	mem := wire.NewMemory(faults)
	provider := func(host int) *Provider {
		p := New(Options{
			Network: mem.Host(fmt.Sprintf("host%d", host),
				netip.AddrFrom4([4]byte{192, 0, 2, byte(host)}),
				netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", host))),
			Engines: engines, Background: true, CM: quick,
		})
		t.Cleanup(func() { testutil.Must(t, p.Close()) })
		return p
	}
	a, b := provider(1), provider(2)
	for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
		t.Run(addr, func(t *testing.T) {
			verbsconf.Run(t, verbsconf.Setup{
				A: a, B: b, AddrA: netip.MustParseAddr(addr),
				FailDestroy: func(verbs.QP) func() {
					a.dev.failDestroy.Store(true)
					return func() { a.dev.failDestroy.Store(false) }
				},
			})
		})
	}
}
