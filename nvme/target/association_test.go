package target

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
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

// connections asks the reactors while they run.
func (r *harness) connections() (list []observed.Connection) {
	r.t.Helper()
	r.during(func() (err error) {
		list, err = r.target.Connections(context.Background())
		return err
	})
	return list
}

// TestConnections: the properties of every queue on every reactor, and the time that its host may
// be silent.
func TestConnections(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	h := r.connectHost(2, func(a *connectArgs) { a.kato = 5000 })
	unconnected := info(nvme.TransportRDMA)
	unconnected.PortID = 7
	r.w.Advance(time.Second)
	r.dialInfo(1, unconnected)
	r.ok(h.io[0], rw(nvme.NVMWrite, 1, 0, 2, make([]byte, 1024)))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.status(h.io[0], rw(nvme.NVMRead, 7, 0, 1, make([]byte, 512)), invalidField)
	r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	r.w.Settle()

	list := r.connections()
	testutil.MustTrue(t, len(list) == 4, "%+v", list)
	if got, want := list[0], (observed.Connection{
		Transport: "rdma", Local: testLocal, Remote: testPeer, PortID: 7, Reactor: 1,
	}); got != want {
		t.Errorf("without Connect: %+v, want %+v", got, want)
	}
	for i, got := range list[1:] {
		want := observed.Connection{
			Host: testHost, Subsystem: testSub, CNTLID: h.cntlid, QID: uint16(i), Depth: 128,
			Transport: "tcp", Local: testLocal, Remote: testPeer, PortID: 1, Reactor: i % 2,
			AgeSeconds: 1, KeepAliveTimeoutSeconds: 5, KeepAliveLeftSeconds: 5,
			KeepAliveMarginSeconds: 5,
		}
		if i == 0 {
			want.Depth, want.InFlight = int(h.args.sqsize)+1, 1
			got.Commands, got.ReadBytes, got.WrittenBytes = 0, 0, 0 // as it pleases the harness
		}
		if i == 1 {
			want.Commands, want.WrittenBytes, want.ReadBytes = 4, 2048, 512
		}
		if i == 2 {
			want.Commands, want.WrittenBytes = 1, 1024
		}
		testutil.Equal(t, got, want, "queue %d", i)
	}

	r.w.Advance(4 * time.Second) // the check after 2.5 s has seen the last command
	for _, c := range r.connections()[1:] {
		testutil.True(t, c.KeepAliveLeftSeconds <= 4 && c.KeepAliveLeftSeconds >= 1,
			"queue %d: %v s left", c.QID, c.KeepAliveLeftSeconds)
	}
	testutil.MustTrue(t, r.connectHost(0).cntlid != h.cntlid, "one CNTLID for two controllers")
	for _, c := range r.connections() {
		testutil.True(t, c.Subsystem == "" || c.CNTLID == h.cntlid ||
			c.KeepAliveTimeoutSeconds == 0, "without keep alive: %+v", c)
	}
}

// TestConnectionsTimeout: a reactor that does not answer is not waited for longer than the caller
// wants.
func TestConnectionsTimeout(t *testing.T) {
	r := newHarness(t, 1)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	testutil.Is(t, testutil.Err(r.target.Connections(ctx)), why, "")
}

// Statuses of package association.
const (
	malformedStatus = nvme.ConnectInvalidParameters | nvme.DNR
	refusedStatus   = nvme.ConnectInvalidParameters
)

// wantRefusal checks that the last refusal has the expected and the received value, and a hint for
// operators.
func (r *harness) wantRefusal() {
	r.t.Helper()
	last, n := r.recorder.Refusals()[0], r.recorder.Kinds()["connect refused"]
	if r.refusals++; n != r.refusals {
		r.t.Errorf("%d refusals are recorded, want %d", n, r.refusals)
		r.refusals = n
	}
	for key, value := range map[string]string{
		"expected": last.Expected, "received": last.Received, "hint": last.Hint,
	} {
		if value == "" || value == "<nil>" {
			r.t.Errorf("%q without %s: %+v", last.Message, key, last)
		}
	}
}

func fabricsCommand(t nvme.FabricsType) nvme.SQE {
	c := command(nvme.FabricsOpcode, 0, nil)
	c.SQE[4] = byte(t)
	return c.SQE
}

// TestOtherAddress: a queue does not join a controller from an address other than that of the admin
// queue, with or without the Host Identifier, and does not take the identifier of a queue.
func TestOtherAddress(t *testing.T) {
	for _, tr := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		t.Run(tr.String(), func(t *testing.T) {
			r := newHarness(t, 2, ramSubsystem(t, 1))
			h := r.connectHostInfo(1, info(tr))
			for _, remote := range []string{
				"192.0.2.8:50000", "[2001:db8::9]:50000", "[fe80::1%eth0]:50000",
			} {
				qi := info(tr)
				qi.Remote = netip.MustParseAddrPort(remote)
				a := h.ioArgs(2)
				for range 2 {
					c := r.status(r.dialInfo(1, qi), a.command(), nvme.ConnectInvalidParameters)
					if got := c.CQE.Result(); got != 1<<16|16 {
						t.Errorf("result %#x, want that of a CNTLID that does not exist", got)
					}
					a.hostID = [16]byte{} // to be ignored
				}
				want := regexp.MustCompile(" remote=" + regexp.QuoteMeta(remote) +
					" .* other_remote=" + regexp.QuoteMeta(testPeer.String()))
				testutil.True(t, want.MatchString(r.log.String()), "%v is not in the log:\n%s",
					want, r.log)
			}
			h.info.Remote = netip.AddrPortFrom(testPeer.Addr(), testPeer.Port()+1)
			r.ok(h.connectIO(1), rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		})
	}
}

// TestForeignController: a peer with another name or another address gets the same answers for the
// identifier of a foreign controller as for an unused one, with any arguments.
func TestForeignController(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	victims := []*host{
		r.connectHost(1), r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN }),
	}
	try := func(h *host, cntlid uint16, i int, change ...func(*connectArgs)) string {
		qi := info([]nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA}[i%2])
		qi.PortID += uint16(i / 2 % 2)
		a := h.ioArgs([]uint16{1, 2, 0xFFFE}[i/4%3])
		a.cntlid, a.sqsize = cntlid, []uint16{0, 31, 0xFFFF}[i/12%3]
		a.hostID[0] += byte(i / 36 % 2)
		if len(change) == 0 {
			qi.Remote = netip.MustParseAddrPort("192.0.2.8:50000")
		}
		for _, f := range change {
			f(&a)
		}
		q := r.dialInfo(0, qi)
		c := r.do(q, a.command())
		q.HangUp()
		return fmt.Sprintf("%v, %#x", c.CQE.Status(), c.CQE.Result())
	}
	for _, h := range victims {
		for i := range 2 * 2 * 3 * 3 * 2 {
			there, free := try(h, h.cntlid, i), try(h, h.cntlid+7, i)
			testutil.True(t, there == free, "%d from another address: %s, and %s for none", i,
				there, free)
			there, free = try(h, h.cntlid, i, asOther), try(h, h.cntlid+7, i, asOther)
			testutil.True(t, there == free, "%d with another name: %s, and %s for none", i, there,
				free)
		}
	}
}

// faultyDevice is a RAM device that tests may hold or fail.
func faultyDevice(t testing.TB, size int64, blockSize int) *backendtest.Faulty {
	t.Helper()
	d := backendtest.NewFaulty(ramDeviceOpen(t, size, blockSize))
	closeLast(t, d)
	return d
}

// faultySubsystem has namespace 1 on a device that tests may hold or fail.
func faultySubsystem(t *testing.T) (subsystems.Config, *backendtest.Faulty) {
	dev := faultyDevice(t, 1<<20, 512)
	return subsystems.Config{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []namespaces.Config{{NSID: 1, Device: dev}},
	}, dev
}

// onFaulty connects a host to a target with faultySubsystem.
func onFaulty(t *testing.T, reactors, queues int) (*harness, *host, *backendtest.Faulty) {
	t.Helper()
	sub, dev := faultySubsystem(t)
	r, h := joined(t, reactors, queues, sub)
	return r, h, dev
}

// TestShutdownOnce: a host that writes SHN again and again gets one shutdown and one timer, and the
// association ends two minutes after it.
func TestShutdownOnce(t *testing.T) {
	for name, sub := range map[string]string{"NVM": testSub, "discovery": nvme.DiscoveryNQN} {
		t.Run(name, func(t *testing.T) {
			r := newHarness(t, 1, ramSubsystem(t, 1))
			h := r.connectHost(0, func(a *connectArgs) { a.sub = sub })
			before := r.w.Reactors[0].Timers()
			for range 100 {
				for _, cc := range []nvme.CC{nvme.CCLinux | nvme.CCShutdownNormal, nvme.CCLinux} {
					r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
				}
				r.w.Advance(1e9)
			}
			n := r.w.Reactors[0].Timers()
			testutil.True(t, n <= before+1, "%d timers, %d before", n, before)
			st := h.csts()
			testutil.True(t, st.SHST() == 2, "CSTS %#x", st)
			r.w.Advance(21e9)
			testutil.True(t, h.admin.Closed() && len(r.target.Controllers()) == 0,
				"the association has not ended")
		})
	}
}
