package target

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// through connects an admin queue through a port.
func through(r *harness, port uint16, nqn string) *host {
	qi := info(nvme.TransportTCP)
	qi.Local, qi.PortID = netip.MustParseAddrPort("192.0.2.1:4420"), port
	return r.connectHostInfo(0, qi, func(a *connectArgs) { a.sub = nqn })
}

// TestLostAccess: after the reactors have carried out a change, the device gets nothing more of a
// host that has lost access, even if its queue still receives data.
func TestLostAccess(t *testing.T) {
	r, h, dev := onFaulty(t, 1, 1)
	q := h.io[0]
	r.ok(q, readAt(0))
	q.Lingers, h.admin.Lingers = true, true
	r.ok(h.admin, selfTestCommand(nvme.SelfTestExtended, 1))
	late := write(1, 7)
	late.Late = true
	r.send(q, late)
	r.target.SetHostNetworks(testHost, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	settled := r.target.Settled()
	testutil.True(t, !closed(settled), "no reactor was waited for")
	r.until("the reactors answer", func() bool { return closed(settled) })
	dev.Fail(func(io *backend.IO) error {
		t.Errorf("the device gets %v", io.Op)
		return nil
	})
	r.w.Advance(100 * time.Millisecond)
	q.Arrive(late)
	r.until("the write is refused", func() bool { return late.Done })
	testutil.Equal(t, late.CQE.Status()&^nvme.More, nvme.CommandSequenceError, "")
	if q.Reason == nil || q.Closed() {
		t.Errorf("disconnected with %v, closed %v", q.Reason, q.Closed())
	}
	testutil.True(t, !strings.Contains(r.log.String(), "self-test"), "the self-test has a result")
}
