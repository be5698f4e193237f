package target

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func TestMain(m *testing.M) { testutil.Main(m) }

const (
	testSub  = "nqn.2026-11.io.nvmf-target:test"
	testHost = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
	testFW   = "v9"
)

var (
	testHostID = [16]byte{1, 2, 3}
	testLocal  = netip.MustParseAddrPort("192.0.2.1:4420")
	testPeer   = netip.MustParseAddrPort("192.0.2.9:50000")
)

// harness is a target on virtual reactors.
type harness struct {
	t        *testing.T
	w        *fabrictest.World
	target   *Target
	raw      []*Handler
	handlers []fabric.Handler
	log      *testutil.Log
	recorder *ratelog.Recorder // of the same lines
	refusals uint64            // that were expected
	closed   bool
	queues   []*fabrictest.Queue
}

// newHarness makes a target with n reactors; everything is checked for leaks when the test ends.
func newHarness(t *testing.T, n int, subs ...subsystems.Config) *harness {
	t.Helper()
	w := testutil.Value(fabrictest.NewWorld(n))(t)
	r := &harness{t: t, w: w, log: new(testutil.Log)}
	r.recorder = ratelog.NewRecorder(r.log.Logger().Handler())
	r.target = New(Options{Log: slog.New(r.recorder), Firmware: testFW})
	for i, re := range w.Reactors {
		h, err := r.target.NewHandler(HandlerConfig{Loop: re, Index: i, Memory: re.Memory()})
		testutil.Must(t, err)
		re.Attach(h)
		r.raw = append(r.raw, h)
		r.handlers = append(r.handlers,
			fabrictest.Watch(h, func(s string) { t.Error("contract: " + s) }))
	}
	for _, s := range subs {
		r.must(r.target.AddSubsystem(s))
	}
	t.Cleanup(r.close)
	return r
}

// joined makes a target and connects a host with I/O queues.
func joined(t *testing.T, reactors, queues int, subs ...subsystems.Config) (*harness, *host) {
	t.Helper()
	r := newHarness(t, reactors, subs...)
	return r, r.connectHost(queues)
}

// run runs a subtest, to which the failures of the harness meanwhile belong.
func (r *harness) run(name string, fn func(t *testing.T)) {
	outer := r.t
	defer func() { r.t = outer }()
	outer.Run(name, func(t *testing.T) {
		r.t = t
		fn(t)
	})
}

func (r *harness) must(err error) {
	r.t.Helper()
	testutil.Must(r.t, err)
}

// close ends everything and looks for leaks.
func (r *harness) close() {
	if r.closed {
		return
	}
	r.closed = true
	for _, q := range r.queues {
		q.HangUp()
	}
	r.during(r.target.Close)
	if err := r.w.Until(func() bool { return r.target.Sessions() == 0 }); err != nil {
		r.t.Errorf("%d sessions left", r.target.Sessions())
	}
	if c := r.target.Controllers(); len(c) > 0 {
		r.t.Errorf("controllers left: %+v", c)
	}
	for i, re := range r.w.Reactors {
		if n := re.Timers(); n > 0 {
			r.t.Errorf("reactor %d: %d timers left", i, n)
		}
	}
	testutil.Check(r.t, r.w.Close())
}

// during runs fn, which waits for reactors, on a goroutine while the reactors run.
func (r *harness) during(fn func() error) {
	r.t.Helper()
	done := make(chan error, 1)
	go func() {
		done <- fn()
		r.w.Reactors[0].Wake()
	}()
	r.until("a call that waits for reactors returns", func() bool { return len(done) > 0 })
	r.must(<-done)
}

func (r *harness) until(what string, cond func() bool) {
	r.t.Helper()
	if err := r.w.Until(cond); err != nil {
		r.t.Fatalf("%s: %v\n%s", what, err, r.log)
	}
}

// settle waits until reactors have nothing to do, and no discovery log is being made again.
func (r *harness) settle() {
	r.t.Helper()
	r.w.Settle()
	r.until("logs are made", func() bool {
		remaking := false
		r.target.discovery.each(func(c *controller) { remaking = remaking || c.Remaking != nil })
		return !remaking
	})
	r.w.Settle()
}

// ramSubsystem is a subsystem with RAM namespaces 1 to n of 1 MiB with blocks of 512 bytes.
func ramSubsystem(t *testing.T, n int) subsystems.Config {
	t.Helper()
	c := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	for i := range n {
		c.Namespaces = append(c.Namespaces,
			namespaces.Config{NSID: uint32(i + 1), Device: ramDevice(t, 1<<20, 512)})
	}
	return c
}

func ramDevice(t testing.TB, size int64, bs int) backend.Device {
	t.Helper()
	d := ramDeviceOpen(t, size, bs)
	closeLast(t, d)
	return d
}

func ramDeviceOpen(t testing.TB, size int64, bs int) backend.Device {
	t.Helper()
	return testutil.Value(ram.Open(ram.Config{Size: size, BlockSize: bs}))(t)
}

// closeLast closes a device after everything that was registered later, the harness for instance.
func closeLast(t testing.TB, d backend.Device) {
	t.Cleanup(func() { testutil.Check(t, d.Close()) })
}

func info(tr nvme.TransportType) fabric.QueueInfo {
	return fabric.QueueInfo{
		Transport: tr, Local: testLocal, Remote: testPeer, PortID: 1, QID: -1, CNTLID: 0xFFFF,
		MaxDepth:      128,
		InCapsuleSize: 4096, MSDBD: 1,
	}
}

func (r *harness) dialInfo(reactor int, i fabric.QueueInfo) *fabrictest.Queue {
	r.t.Helper()
	q, err := fabrictest.Dial(r.w.Reactors[reactor], r.handlers[reactor], i)
	r.must(err)
	r.queues = append(r.queues, q)
	return q
}

func (r *harness) dial(reactor int) *fabrictest.Queue {
	return r.dialInfo(reactor, info(nvme.TransportTCP))
}

// send sends a command without waiting.
func (r *harness) send(q *fabrictest.Queue, c *fabrictest.Command) *fabrictest.Command {
	r.t.Helper()
	r.must(q.Send(c))
	return c
}

// do sends a command and waits for it.
func (r *harness) do(q *fabrictest.Queue, c *fabrictest.Command) *fabrictest.Command {
	r.t.Helper()
	r.send(q, c)
	r.until("a command completes", func() bool { return c.Done })
	return c
}

// ok expects success.
func (r *harness) ok(q *fabrictest.Queue, c *fabrictest.Command) *fabrictest.Command {
	r.t.Helper()
	r.do(q, c)
	if st := c.CQE.Status(); !st.OK() {
		r.t.Fatalf("opcode %#x: %v", c.SQE.Opcode(), st)
	}
	return c
}

// status expects exactly this status, except for the More bit.
func (r *harness) status(q *fabrictest.Queue, c *fabrictest.Command,
	want nvme.Status,
) *fabrictest.Command {
	r.t.Helper()
	r.do(q, c)
	testutil.Equal(r.t, c.CQE.Status()&^nvme.More, want, "opcode %#x", c.SQE.Opcode())
	return c
}

var nextCID atomic.Uint32

// command makes a command with the flags every host sets.
func command(op nvme.Opcode, nsid uint32, data []byte) *fabrictest.Command {
	c := &fabrictest.Command{Data: data}
	c.SQE.SetOpcode(op)
	c.SQE.SetFlags(psdtSGL << 6)
	c.SQE.SetCID(uint16(nextCID.Add(1)))
	c.SQE.SetNSID(nsid)
	return c
}

// connectArgs has the parts of a Connect command.
type connectArgs struct {
	qid, sqsize, recfmt uint16
	cattr               nvme.CATTR
	kato                uint32
	hostID              [16]byte
	cntlid              uint16
	sub, host           string
}

func adminArgs(sub string) connectArgs {
	return connectArgs{
		sqsize: 31, hostID: testHostID, cntlid: nvme.CNTLIDDynamic, sub: sub,
		host: testHost,
	}
}

func (a connectArgs) command() *fabrictest.Command {
	d := nvme.ConnectData{HostID: a.hostID, CNTLID: a.cntlid}
	nvme.PutNQN(&d.SUBNQN, a.sub)
	nvme.PutNQN(&d.HOSTNQN, a.host)
	c := command(nvme.FabricsOpcode, 0, nvme.Append(nil, &d))
	c.InCapsule = true
	c.SQE.Connect().Set(a.qid, a.sqsize, a.cattr, a.kato)
	c.SQE[40], c.SQE[41] = byte(a.recfmt), byte(a.recfmt>>8)
	return c
}

func propertyGetCommand(off nvme.PropertyOffset) *fabrictest.Command {
	c := command(nvme.FabricsOpcode, 0, nil)
	c.SQE.Property().Set(nvme.FabricsPropertyGet, off, 0)
	return c
}

func propertySetCommand(off nvme.PropertyOffset, v uint64) *fabrictest.Command {
	c := command(nvme.FabricsOpcode, 0, nil)
	c.SQE.Property().Set(nvme.FabricsPropertySet, off, v)
	return c
}

func identifyCommand(cns nvme.CNS, nsid uint32) *fabrictest.Command {
	c := command(nvme.AdminIdentify, nsid, make([]byte, nvme.IdentifyDataSize))
	c.SQE.Identify().Set(cns, 0, 0)
	return c
}

func logCommand(lid nvme.LID, n int, off uint64) *fabrictest.Command {
	c := command(nvme.AdminGetLogPage, nvme.NSIDAll, make([]byte, n))
	c.SQE.GetLog().Set(lid, uint64(n), off, 0, false)
	return c
}

func setFeature(fid nvme.FID, v uint32) *fabrictest.Command {
	c := command(nvme.AdminSetFeatures, 0, nil)
	c.SQE.Features().Set(fid, v)
	return c
}

func getFeature(fid nvme.FID, sel nvme.FeatureSelect, v uint32) *fabrictest.Command {
	c := command(nvme.AdminGetFeatures, 0, nil)
	c.SQE.Features().Set(fid, v)
	c.SQE[41] |= byte(sel)
	return c
}

func rw(op nvme.Opcode, nsid uint32, slba uint64, blocks uint32, data []byte) *fabrictest.Command {
	c := command(op, nsid, data)
	c.SQE.RW().Set(slba, blocks, 0)
	return c
}

// host is a connected host.
type host struct {
	r      *harness
	args   connectArgs
	info   fabric.QueueInfo
	cntlid uint16
	admin  *fabrictest.Queue
	io     []*fabrictest.Queue
}

// connectHost connects, enables the controller and connects nio I/O queues, spread over the
// reactors.
func (r *harness) connectHost(nio int, change ...func(*connectArgs)) *host {
	r.t.Helper()
	return r.connectHostInfo(nio, info(nvme.TransportTCP), change...)
}

func (r *harness) connectHostInfo(nio int, qi fabric.QueueInfo,
	change ...func(*connectArgs),
) *host {
	r.t.Helper()
	h := &host{r: r, args: adminArgs(testSub), info: qi}
	for _, f := range change {
		f(&h.args)
	}
	h.admin = r.dialInfo(0, qi)
	c := r.ok(h.admin, h.args.command())
	h.cntlid = nvme.ConnectResult(c.CQE.DW0()).CNTLID()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	for i := range nio {
		h.connectIO((i + 1) % len(r.handlers))
	}
	return h
}

func (h *host) connectIO(reactor int) *fabrictest.Queue {
	h.r.t.Helper()
	q := h.r.dialInfo(reactor, h.info)
	h.r.ok(q, h.ioArgs(uint16(len(h.io)+1)).command())
	h.io = append(h.io, q)
	return q
}

// ioArgs is the Connect of I/O queue qid.
func (h *host) ioArgs(qid uint16) connectArgs {
	a := h.args
	a.qid, a.cntlid, a.sqsize, a.kato = qid, h.cntlid, 127, 0
	return a
}

func (h *host) property(off nvme.PropertyOffset) uint64 {
	h.r.t.Helper()
	return h.r.ok(h.admin, propertyGetCommand(off)).CQE.Result()
}

func (h *host) csts() nvme.CSTS { return nvme.CSTS(h.property(nvme.PropertyCSTS)) }

// hangUp ends all queues of the host.
func (h *host) hangUp() {
	h.admin.HangUp()
	for _, q := range h.io {
		q.HangUp()
	}
}
