package authn

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestPool: the number of remembered addresses and failures is bounded.
func TestPool(t *testing.T) {
	p := NewPool()
	for i := range 2 * maxKnown {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		p.Failed("host", a)
		p.Succeeded("other", a)
	}
	testutil.True(t, len(p.known) <= maxKnown && len(p.failures) <= maxKnown,
		"%d addresses and %d failures are remembered", len(p.known), len(p.failures))
}
