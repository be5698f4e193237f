package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestKeepAliveAfterStall: when this process stood still, commands may wait unread, so the first
// check after that does not expire.
func TestKeepAliveAfterStall(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0, func(a *connectArgs) { a.kato = 5000 })
	k := &r.target.find(testSub).lookup(h.cntlid).alive
	// thirty seconds passed without a check
	k.lastCheck, k.lastSeen = k.lastCheck-30e9, k.lastSeen-30e9
	r.w.Advance(1.3e9)
	testutil.MustTrue(t, !h.admin.Closed(), "expired because this process stood still")
	r.w.Advance(7.5e9)
	testutil.True(t, h.admin.Closed(), "did not expire afterwards")
}
