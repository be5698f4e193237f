package target

import (
	"errors"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestRacingConnects: two Connects, or two Disconnects, in one batch.
func TestRacingConnects(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	q := r.dial(0)
	a, b := adminArgs(testSub).command(), adminArgs(testSub).command()
	r.must(q.Send(a, b))
	r.w.Settle()
	if !a.CQE.Status().OK() || b.CQE.Status()&^nvme.More != sequenceError ||
		len(r.target.Controllers()) != 1 {
		t.Errorf("%v, %v, %d controllers", a.CQE.Status(), b.CQE.Status(),
			len(r.target.Controllers()))
	}
	h := &host{
		r: r, args: adminArgs(testSub), info: *q.Info(), admin: q,
		cntlid: uint16(a.CQE.DW0()),
	}
	r.ok(q, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	io := h.connectIO(0)
	c, d := &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsDisconnect)},
		&fabrictest.Command{SQE: fabricsCommand(nvme.FabricsDisconnect)}
	r.must(io.Send(c, d))
	r.w.Settle()
	if !c.CQE.Status().OK() || d.CQE.Status()&^nvme.More != sequenceError || !io.Closed() {
		t.Errorf("%v, %v, closed %v", c.CQE.Status(), d.CQE.Status(), io.Closed())
	}
	// A transport without memory for the admin queue leaves no controller behind.
	poor := r.dial(0)
	poor.RefuseDepth = errors.New("test")
	r.status(poor, adminArgs(testSub).command(), nvme.ConnectControllerBusy)
	testutil.Equal(t, len(r.target.Controllers()), 1, "controllers")
}

// TestAllowed: the transport learns the queues of hosts that a subsystem allows.
func TestAllowed(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	if h.admin.Peer != fabric.Allowed || h.io[0].Peer != fabric.Allowed ||
		d.admin.Peer != fabric.Discovery {
		t.Errorf("admin queue %v, I/O queue %v, discovery %v", h.admin.Peer, h.io[0].Peer,
			d.admin.Peer)
	}
	want := fabric.Claim{Host: h.args.host, Admin: true}
	testutil.Equal(t, h.admin.Claim, want, "admin queue")
	want.Admin = false
	testutil.True(t, h.io[0].Claim == want, "I/O queue: %+v", h.io[0].Claim)
	qi := info(nvme.TransportTCP)
	qi.TLS = &fabric.TLS{HostNQN: h.args.host, SubNQN: testSub}
	q := r.connectHostInfo(0, qi, func(a *connectArgs) { a.sub = testSub })
	testutil.True(t, q.admin.Claim.Proven, "TLS proves nothing")
}

// TestConnectDeadline: a queue without a successful Connect is closed (F20).
func TestConnectDeadline(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	idle, failed := r.dial(0), r.dial(0)
	a := adminArgs(testSub)
	a.sub += "x"
	r.status(failed, a.command(), nvme.ConnectInvalidParameters)
	h := r.connectHost(0)
	r.w.Advance(11e9)
	if !idle.Closed() || !failed.Closed() || h.admin.Closed() {
		t.Errorf("closed: idle %v, failed %v, connected %v", idle.Closed(), failed.Closed(),
			h.admin.Closed())
	}
}

// TestSQHD: flow control counts entries modulo the queue size; without it SQHD is FFFFh (F18, Q06).
func TestSQHD(t *testing.T) {
	r, h := joined(t, 2, 0, ramSubsystem(t, 1))
	tiny := h.ioArgs(1)
	tiny.sqsize = 2
	q := r.dial(1)
	want := uint16(1)
	c := r.ok(q, tiny.command())
	testutil.True(t, c.CQE.SQHD() == want, "Connect: SQHD %d, want %d", c.CQE.SQHD(), want)
	for range 7 {
		c := r.do(q, command(nvme.NVMFlush, 1, nil))
		want = (want + 1) % 3
		testutil.MustEqual(t, c.CQE.SQHD(), want, "SQHD")
	}
	free := h.ioArgs(2)
	free.cattr = nvme.CATTRNoFlowControl | 0xF0
	q = r.dial(1)
	c = r.ok(q, free.command())
	testutil.True(t, c.CQE.SQHD() == 0xFFFF, "SQHD %#x, want FFFFh", c.CQE.SQHD())
	if c := r.status(q, rw(nvme.NVMRead, 9, 0, 1, make([]byte, 512)),
		inactiveNamespace); c.CQE.SQHD() != 0xFFFF {
		t.Errorf("SQHD %#x, want FFFFh", c.CQE.SQHD())
	}
}
