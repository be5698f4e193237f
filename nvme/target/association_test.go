package target

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
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
	testutil.True(t, a.CQE.Status().OK() && b.CQE.Status()&^nvme.More == sequenceError &&
		len(r.target.Controllers()) == 1, "%v, %v, %d controllers", a.CQE.Status(), b.CQE.Status(),
		len(r.target.Controllers()))
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
	testutil.True(t, c.CQE.Status().OK() && d.CQE.Status()&^nvme.More == sequenceError &&
		io.Closed(), "%v, %v, closed %v", c.CQE.Status(), d.CQE.Status(), io.Closed())
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
	testutil.True(t, h.admin.Peer == fabric.Allowed && h.io[0].Peer == fabric.Allowed &&
		d.admin.Peer == fabric.Discovery, "admin queue %v, I/O queue %v, discovery %v",
		h.admin.Peer, h.io[0].Peer, d.admin.Peer)
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
	testutil.True(t, idle.Closed() && failed.Closed() && !h.admin.Closed(),
		"closed: idle %v, failed %v, connected %v", idle.Closed(), failed.Closed(),
		h.admin.Closed())
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

// Statuses of package association.
const (
	malformedStatus = nvme.ConnectInvalidParameters | nvme.DNR
	refusedStatus   = nvme.ConnectInvalidParameters
)

// wantRefusal checks that the last refusal has the expected and the received value, and a hint for
// operators.
func (r *harness) wantRefusal() {
	r.t.Helper()
	last, n := r.recorder.Refusals()[0], r.recorder.Kinds()[event.ConnectRefused]
	if r.refusals++; n != r.refusals {
		r.t.Errorf("%d refusals are recorded, want %d", n, r.refusals)
		r.refusals = n
	}
	for key, value := range map[string]string{
		"expected": last.Expected, "received": last.Received, "hint": last.Hint,
	} {
		testutil.True(r.t, value != "" && value != "<nil>", "%q without %s: %+v", last.Message, key,
			last)
	}
}

func fabricsCommand(t nvme.FabricsType) nvme.SQE {
	c := command(nvme.FabricsOpcode, 0, nil)
	c.SQE[4] = byte(t)
	return c.SQE
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
	testutil.True(t, q.Reason != nil && !q.Closed(), "disconnected with %v, closed %v", q.Reason,
		q.Closed())
	testutil.True(t, !strings.Contains(r.log.String(), "self-test"), "the self-test has a result")
}

const otherHost = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555"

func asOther(a *connectArgs) { a.host = otherHost }

// connectOther connects otherHost, which takes turns with the hosts at testPeer, with an I/O queue.
func (r *harness) connectOther() *host { return r.connectHostInfo(1, from(2), asOther) }

// update changes the subsystem of the tests.
func (r *harness) update(change func(*subsystems.Config)) (gone <-chan struct{}) {
	r.t.Helper()
	cfg := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	change(&cfg)
	gone, err := r.target.UpdateSubsystem(cfg)
	r.must(err)
	return gone
}

// TestUpdateHosts: a host that is no longer allowed is disconnected, the I/O that the storage has
// is waited for, and others notice nothing.
func TestUpdateHosts(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 2, sub)
	h, o := r.connectHost(1), r.connectHost(1, asOther)
	dev.Hold(nil)
	r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	gone := r.update(func(c *subsystems.Config) {
		c.AllowAnyHost, c.Hosts = false, []string{otherHost}
	})
	r.w.Settle()
	testutil.True(t, h.admin.Closed() && h.io[0].Closed() && !o.admin.Closed() && !o.io[0].Closed(),
		"other queues are closed than those of the host that was removed")
	r.stays(gone)
	r.status(r.dial(0), adminArgs(testSub).command(), nvme.ConnectInvalidHost|nvme.DNR)
	dev.Release()
	r.must(untilGone(r.w, gone))
	l := r.target.Controllers()
	testutil.True(t, len(l) == 1 && l[0].NQN == otherHost, "controllers %+v", l)
	r.ok(o.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))

	r.must(untilGone(r.w, r.update(func(c *subsystems.Config) { c.Hosts = []string{otherHost} })))
	r.connectHost(0) // any host again
	testutil.True(t, !o.admin.Closed(), "a host was disconnected when others were allowed")
}

// TestUpdateWhileConnecting: a host is not admitted that was allowed when its Connect began.
func TestUpdateWhileConnecting(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	s := r.target.find(testSub)
	q := &session{h: r.raw[0], info: new(fabric.QueueInfo), port: r.target.ports.State(1)}
	c := newController(q, s, testHost, testHostID)
	r.must(untilGone(r.w, r.update(func(c *subsystems.Config) { c.AllowAnyHost = false })))
	r2 := s.Admit(&c.Controller, c.Admission)
	testutil.True(t, r2.Status == nvme.ConnectInvalidHost && r2.Final && s.lookup(c.CNTLID) != c,
		"%v", r2.Status)
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

// TestKeepAliveMargin: the smallest part of KATO that was left is shown for a minute or two.
func TestKeepAliveMargin(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1, func(a *connectArgs) { a.kato = 20000 })
	margin := func() time.Duration {
		return time.Duration(r.connections()[0].KeepAliveMarginSeconds * float64(time.Second))
	}
	about := func(what string, want time.Duration) {
		t.Helper()
		got := margin()
		if d := got - want; d < -100*time.Millisecond || d > 100*time.Millisecond {
			t.Errorf("%s: %v is left, want %v", what, got, want)
		}
	}
	alive := func() { r.ok(h.admin, command(nvme.AdminKeepAlive, 0, nil)) }
	about("at once", 20*time.Second)
	for range 5 {
		r.w.Advance(5 * time.Second)
		alive()
	}
	about("a Keep Alive every 5 s", 15*time.Second)
	r.w.Advance(16 * time.Second)
	about("silent for 16 s", 4*time.Second)
	alive()
	for range 8 {
		r.w.Advance(5 * time.Second)
		alive()
	}
	about("40 s later", 4*time.Second)
	for range 30 {
		r.w.Advance(5 * time.Second)
		alive()
	}
	about("three minutes later", 15*time.Second)
	for range 40 { // a check notices other commands: never more than half of KATO is missing
		r.w.Advance(time.Second)
		r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	}
	got := margin()
	testutil.True(t, got >= 10*time.Second, "%v is left of a host with I/O every second", got)
}

func (r *harness) askForResets(port func(uint16) bool) (asked []*ResetRequest) {
	r.t.Helper()
	r.during(func() (err error) {
		asked, err = r.target.AskForResets(context.Background(), port)
		return err
	})
	return asked
}

func isGone(q *ResetRequest) bool {
	select {
	case <-q.Gone():
		return true
	default:
		return false
	}
}

// TestAskForResets: hosts of these ports get the event once, as soon as they have a request for it,
// with any events enabled. Discovery controllers and disabled controllers do not get it.
func TestAskForResets(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	other := info(nvme.TransportTCP)
	other.PortID = 7
	h, elsewhere := r.connectHost(1), r.connectHostInfo(0, other)
	disabled := r.connectHost(0)
	r.ok(disabled.admin, propertySetCommand(nvme.PropertyCC, 0))
	discovery := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	aer := func(h *host) *fabrictest.Command {
		return r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	others := []*fabrictest.Command{aer(elsewhere), aer(discovery)}

	asked := r.askForResets(func(id uint16) bool { return id != 7 })
	r.w.Settle()
	testutil.MustTrue(t, len(asked) == 1 && !asked[0].Begun() && !isGone(asked[0]),
		"%d controllers were asked", len(asked))
	for i, c := range others {
		testutil.True(t, !c.Done, "event %#x of another controller, %d", c.CQE.DW0(), i)
	}
	event := aer(h) // it has waited for a request
	r.w.Settle()
	if !event.Done || nvme.AsyncEvent(event.CQE.DW0()) != nvme.AsyncPersistentError {
		t.Fatalf("event %v %#x", event.Done, event.CQE.DW0())
	}
	testutil.True(t, !aer(h).Done, "the event came again")
	r.ok(h.io[0], readAt(0)) // the host decides when

	h.io[0].HangUp()
	r.w.Settle()
	testutil.True(t, asked[0].Begun(), "the end of a queue does not begin a reset")
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	if r.w.Settle(); h.csts().RDY() || isGone(asked[0]) {
		t.Error("the controller is not reset, or gone already")
	}
	h.admin.HangUp()
	r.w.Settle()
	testutil.True(t, isGone(asked[0]), "the controller is not gone")
}

// TestPauseAll: the devices have no more commands of hosts, and new commands wait. A host that
// resets drops its commands. The commands of other hosts go on.
func TestPauseAll(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h, stays := r.connectHost(1), r.connectHost(1)
	dev.Hold(nil)
	read := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	pauseAll := func(within time.Duration) (release func(), err error) {
		r.during(func() error {
			release, err = r.target.PauseAll(within)
			return nil
		})
		return release, err
	}
	// On a busy machine the time is over before anything was waited for, with another error.
	if _, err := pauseAll(time.Millisecond); err == nil || r.target.Stats()[0].State == "paused" {
		t.Fatalf("%v, %+v", err, r.target.Stats()[0])
	}
	dev.Release()
	r.until("the command completes", func() bool { return read.Done })

	release, err := pauseAll(time.Hour)
	testutil.MustTrue(t, err == nil && r.target.Stats()[0].State == "paused", "%v", err)
	lost, waits := r.send(h.io[0], readAt(0)), r.send(stays.io[0], readAt(0))
	r.w.Settle()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	if r.w.Settle(); h.csts().RDY() || waits.Done {
		t.Errorf("ready %v, done %v", h.csts().RDY(), waits.Done)
	}
	r.during(func() error {
		release()
		return nil
	})
	r.until("the command goes on", func() bool { return waits.Done })
	if !waits.CQE.Status().OK() || lost.Done && lost.CQE.Status().OK() ||
		r.target.Stats()[0].State == "paused" {
		t.Errorf("%v, %v, %+v", waits.CQE.Status(), lost.CQE.Status(), r.target.Stats()[0])
	}
	// A pause that was there before stays.
	r.pause()
	release, err = pauseAll(time.Hour)
	testutil.MustTrue(t, err == nil, "%v", err)
	release()
	testutil.True(t, r.target.Stats()[0].State == "paused", "the pause has ended")
	r.resume()
}

// TestPauseAllIsBounded: the goroutines that pause all namespaces, and their posts to a reactor, do
// not grow with the number of namespaces.
func TestPauseAllIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 2*namespaces.PausedAtOnce))
		h := r.connectHost(1)
		// A read opens a channel, which a pause closes.
		for nsid := range uint32(2 * namespaces.PausedAtOnce) {
			r.ok(h.io[0], rw(nvme.NVMRead, nsid+1, 0, 1, make([]byte, 512)))
		}
		most, ended := 0, make(chan error, 1)
		go func() {
			pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
			release, err := r.target.PauseAll(time.Hour)
			if err == nil {
				release()
			}
			ended <- err
		}()
		for len(ended) == 0 {
			synctest.Wait()
			most = max(most, labelled(t, t.Name()))
			r.w.Settle()
		}
		testutil.Equal(t, <-ended, nil, "")
		testutil.Equal(t, most, 1+namespaces.PausedAtOnce, "goroutines")
	})
}

// labelled returns the number of goroutines with this label, which goroutines inherit.
func labelled(t *testing.T, label string) (count int) {
	t.Helper()
	var profile strings.Builder
	testutil.Must(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	n := 0
	for line := range strings.Lines(profile.String()) {
		_, _ = fmt.Sscanf(line, "%d @", &n)
		if strings.HasPrefix(line, "# labels:") && strings.Contains(line, strconv.Quote(label)) {
			count += n
		}
	}
	return count
}
