package authn

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestBounded: the number of remembered addresses and failures is bounded.
func TestBounded(t *testing.T) {
	h := NewHosts()
	for i := range 2 * maxKnown {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		h.Failed("host", a)
		h.Succeeded("other", a)
	}
	testutil.True(t, len(h.known) <= maxKnown && len(h.failures) <= maxKnown,
		"%d addresses and %d failures are remembered", len(h.known), len(h.failures))
}
