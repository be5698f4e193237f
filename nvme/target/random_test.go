package target

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestRandomFaults aborts, holds, cancels, fails, times out and hangs up in random order. Every
// command of an open queue completes once, Abort reports the outcome, all memory comes back, and a
// device that was given up writes only the data of its command.
func TestRandomFaults(t *testing.T) {
	t.Parallel() // it computes
	for seed := range uint64(40) {
		sub, dev := hangingSubsystem(t)
		if seed%2 == 0 {
			dev.HonorCancel()
		}
		r := newHarness(t, 2, sub)
		x := &randomFaults{
			harness: r, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), dev: dev,
			h: r.connectHost(2),
		}
		for _, q := range x.h.io { // opens the channels
			r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.ok(q, rw(nvme.NVMRead, 2, 0, 1, make([]byte, 512)))
			r.ok(q, everyCommand()[1]) // the only write to its blocks, again and again
		}
		for _, re := range r.w.Reactors {
			x.free = append(x.free, re.Memory().Available())
		}
		for range 300 {
			x.step()
		}
		x.finish()
	}
}

// randomFaults is one run of TestRandomFaults.
type randomFaults struct {
	*harness
	seed uint64
	rnd  *rand.Rand
	dev  *backendtest.Faulty
	h    *host
	sent [2][]*fabrictest.Command // by queue, since it was connected
	free []int                    // bytes of each reactor before
}

// step does one thing.
func (x *randomFaults) step() {
	i := x.rnd.IntN(2)
	q := x.h.io[i]
	switch n := x.rnd.IntN(100); {
	case n < 50:
		x.sendAny(i)
	case n < 65:
		x.abortAny(i)
	case n < 70:
		x.dev.Hold(nil)
	case n < 75:
		x.dev.Release()
	case n < 80:
		x.dev.Full(true) // for a short time: a device that is full and idle is offered IOs again
		x.sendAny(i)
		x.sendAny(i)
		x.abortAny(i)
		if n%2 == 0 {
			q.HangUp()
		}
		x.dev.Full(false)
		if n%2 == 0 {
			x.reconnect(i)
		}
	case n < 83:
		x.dev.Fail(func(*backend.IO) error { return backend.ErrOffline })
	case n < 86:
		x.dev.Fail(nil)
	case n < 94:
		x.w.Advance(time.Duration(x.rnd.IntN(3000)) * time.Millisecond)
	case n < 97:
		x.w.Step()
	default:
		x.reconnect(i)
	}
}

// sendAny sends a command on queue i.
func (x *randomFaults) sendAny(i int) {
	x.t.Helper()
	q := x.h.io[i]
	if q.Outstanding() == 100 {
		return
	}
	all := append(everyCommand(), rw(nvme.NVMWrite, 2, 0, 8, make([]byte, 4096)))
	c := all[x.rnd.IntN(len(all))]
	c.InCapsule = c.SQE.Opcode() == nvme.NVMWrite && x.rnd.IntN(2) == 0
	x.sent[i] = append(x.sent[i], x.send(q, c))
}

// abortAny aborts a command of queue i, which may be done.
func (x *randomFaults) abortAny(i int) {
	x.t.Helper()
	if len(x.sent[i]) == 0 {
		return
	}
	c := x.sent[i][x.rnd.IntN(len(x.sent[i]))]
	done := c.Done
	a := x.ok(x.h.admin, abortCommand(uint16(i+1), c.SQE.CID()))
	if a.CQE.DW0() == 0 && (done || !c.Done || c.CQE.Status() != nvme.AbortRequested) {
		x.t.Errorf("seed %d: aborted opcode %#x: done before %v, done %v, %v", x.seed,
			c.SQE.Opcode(), done, c.Done, c.CQE.Status())
	}
}

// reconnect ends queue i suddenly and connects another one in its place.
func (x *randomFaults) reconnect(i int) {
	x.t.Helper()
	x.h.io[i].HangUp()
	x.w.Advance(time.Duration(closeGrace + timeoutInterval)) // the device may hang
	x.h.io[i] = x.dialInfo((i+1)%2, x.h.info)
	x.ok(x.h.io[i], x.h.ioArgs(uint16(i+1)).command())
	x.sent[i] = nil
}

// finish ends all faults.
func (x *randomFaults) finish() {
	x.t.Helper()
	x.dev.Fail(nil)
	x.dev.Release()
	x.w.Advance(time.Minute)
	for i := range x.sent {
		for _, c := range x.sent[i] {
			switch st := c.CQE.Status() &^ nvme.More; {
			case !c.Done:
				x.t.Errorf("seed %d: opcode %#x is lost", x.seed, c.SQE.Opcode())
			case st != nvme.Success && st != notReady && st != nvme.AbortRequested:
				x.t.Errorf("seed %d: opcode %#x: %v", x.seed, c.SQE.Opcode(), st)
			}
		}
		if n := x.h.io[i].Outstanding(); n != 0 {
			x.t.Errorf("seed %d: queue %d has %d commands", x.seed, i+1, n)
		}
	}
	for i, re := range x.w.Reactors {
		if n := re.Memory().Available(); n != x.free[i] {
			x.t.Errorf("seed %d: reactor %d: %d bytes have not come back", x.seed, i, x.free[i]-n)
		}
	}
	want := everyCommand()[1].Data
	read := x.ok(x.h.io[0], rw(nvme.NVMRead, 1, 64, 64, make([]byte, len(want))))
	testutil.True(x.t, bytes.Equal(read.Data, want),
		"seed %d: the device wrote what it was not given", x.seed)
	if l := x.target.Stats(); !l[0].Ready || l[0].Orphans != 0 {
		x.t.Errorf("seed %d: %+v", x.seed, l[0])
	}
	x.h.hangUp()
	x.w.Settle()
	testutil.Equal(x.t, x.target.Sessions(), 0, "seed %d: queues are left", x.seed)
}

// FuzzCommand sends arbitrary commands on the admin and I/O queue of a connected host. Each gets
// one CQE, the contract is kept (the harness checks it), and the target keeps running.
func FuzzCommand(f *testing.F) {
	for _, c := range []*fabrictest.Command{
		rw(nvme.NVMRead, 1, 0, 8, nil), rw(nvme.NVMWrite, 1, 1<<55, 8, nil),
		rw(nvme.NVMWriteZeroes, 1, 0, 65536, nil), rw(nvme.NVMCompare, 1, 0, 8, nil),
		rw(nvme.NVMVerify, 1, 0, 8, nil), copyTo(8, nvme.CopyRanges, source{blocks: 8}),
		fused(nvme.NVMCompare, 1, 0, make([]byte, 4096)), fused(nvme.NVMWrite, 2, 0, nil),
		dsm(1, true, [2]uint64{0, 1}), command(nvme.NVMFlush, nvme.NSIDAll, nil),
		identifyCommand(nvme.CNSController, 0),
		logCommand(nvme.LogDiscovery, 4096, 0), logCommand(nvme.LogError, 64, 1<<63),
		getFeature(nvme.FeatureHostIdentifier, 0, 1),
		setFeature(nvme.FeatureKeepAliveTimer, 1), propertyGetCommand(nvme.PropertyCAP),
		propertySetCommand(nvme.PropertyCC, 0),
		adminArgs(testSub).command(), command(nvme.AdminAbort, 0, nil),
		command(nvme.AdminAsyncEventReq, 0, nil),
		selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll),
		telemetryCommand(nvme.LogTelemetryHost, true, 4096, 0), commandSetsOf(1),
	} {
		f.Add(c.SQE[:], uint32(4096), false, []byte{1, 2, 3})
		f.Add(c.SQE[:], uint32(0), true, []byte{})
	}
	f.Fuzz(func(t *testing.T, sqe []byte, length uint32, capsule bool, data []byte) {
		r, h := joined(t, 2, 1, ramSubsystem(t, 2))
		d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
		fresh := r.dial(0)
		for _, q := range []*fabrictest.Queue{fresh, h.io[0], d.admin, h.admin} {
			c := &fabrictest.Command{
				Data:      make([]byte, length%(1<<20+4096)),
				InCapsule: capsule,
			}
			copy(c.SQE[:], sqe)
			copy(c.Data, data)
			r.send(q, c)
			r.w.Settle()
			switch {
			case c.Done || q.Closed():
			// waits for an event
			case c.SQE.Opcode() == nvme.AdminAsyncEventReq && (q == h.admin || q == d.admin):
			default:
				if c.SQE.FUSE() == 1 { // waits for the second one
					r.w.Advance(time.Duration(pairWait) + time.Second)
				}
				r.until("the command completes", func() bool { return c.Done || q.Closed() })
			}
			r.w.Advance(10 * time.Millisecond) // for a self-test
		}
	})
}

// TestRandomCommands does the same as the fuzzer with many commands on one target, biased towards
// known ones.
func TestRandomCommands(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	r := newHarness(t, 2, ramSubsystem(t, 2))
	var h *host
	for i := range 5000 {
		if h == nil || h.admin.Closed() || h.io[0].Closed() || !h.csts().RDY() {
			if h != nil {
				h.hangUp()
			}
			h = r.connectHost(1)
		}
		q := h.io[0]
		if i%2 == 0 {
			q = h.admin
		}
		c := &fabrictest.Command{Data: make([]byte,
			[]int{0, 4, 512, 1024, 4096, 16384}[rnd.IntN(6)]), InCapsule: rnd.IntN(8) == 0}
		for j := range c.SQE {
			if rnd.IntN(4) == 0 {
				c.SQE[j] = byte(rnd.Uint32())
			}
		}
		op := []nvme.Opcode{0, 1, 2, 5, 6, 8, 9, 10, 20, 24, 25, nvme.FabricsOpcode}[rnd.IntN(12)]
		c.SQE.SetOpcode(op)
		c.SQE.SetFlags(psdtSGL << 6)
		c.SQE.SetNSID(uint32(rnd.IntN(4)))
		if op == nvme.FabricsOpcode {
			c.SQE[4] = byte(rnd.IntN(10))
		}
		r.do(q, c)
		if i%16 == 0 {
			r.w.Advance(5 * time.Millisecond)
		}
	}
}

// commandSetsOf is Identify with CNS 1Ch.
func commandSetsOf(cntlid uint16) *fabrictest.Command {
	c := identifyCommand(nvme.CNSCommandSets, 0)
	c.SQE.Identify().Set(nvme.CNSCommandSets, cntlid, 0)
	return c
}

// core is a real reactor with its handler.
type core struct {
	r      *reactor.Reactor
	memory *mem.Pool
	h      fabric.Handler
}

// stressHost is one host goroutine; its queues belong to reactors.
type stressHost struct {
	t      *testing.T
	cores  []*core
	rnd    *rand.Rand
	queues []*stressQueue
}

type stressQueue struct {
	c     *core
	q     *fabrictest.Queue
	ended chan struct{}
}

// errEnded is the error of a queue that the stress test ends.
var errEnded = errors.New("queue is ended")

func (h *stressHost) dial(c *core) *stressQueue {
	sq := &stressQueue{c: c, ended: make(chan struct{})}
	ready := make(chan error)
	c.r.Post(func() {
		q, err := fabrictest.DialOn(c.r, c.memory, c.h, info(nvme.TransportTCP))
		if err == nil {
			q.OnClose = func() { close(sq.ended) }
		}
		sq.q = q
		ready <- err
	})
	if err := <-ready; err != nil {
		h.t.Error(err)
		return nil
	}
	h.queues = append(h.queues, sq)
	return sq
}

// send sends commands and returns a channel that is closed when all are done.
func (sq *stressQueue) send(cmds ...*fabrictest.Command) <-chan struct{} {
	done := make(chan struct{})
	sq.c.r.Post(func() {
		left := len(cmds)
		for _, c := range cmds {
			c.Then = func() {
				if left--; left == 0 {
					close(done)
				}
			}
		}
		_ = sq.q.Send(cmds...)
	})
	return done
}

func (h *stressHost) do(sq *stressQueue, c *fabrictest.Command) (nvme.Status, error) {
	select {
	case <-sq.send(c):
		return c.CQE.Status(), nil
	case <-sq.ended:
		return 0, errEnded
	case <-time.After(time.Minute):
		h.t.Errorf("opcode %#x is lost", c.SQE.Opcode())
		return 0, errEnded
	}
}

// association connects, enables the controller, does I/O on several queues, and ends in some way.
func (h *stressHost) association(args connectArgs) error {
	pick := func() *core { return h.cores[h.rnd.IntN(len(h.cores))] }
	admin := h.dial(pick())
	c := args.command()
	if st, err := h.do(admin, c); err != nil || !st.OK() {
		return errors.Join(err, st)
	}
	cntlid := nvme.ConnectResult(c.CQE.DW0()).CNTLID()
	if _, err := h.do(admin,
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux))); err != nil {
		return err
	}
	admin.send(&fabrictest.Command{SQE: command(nvme.AdminAsyncEventReq, 0, nil).SQE})
	var io []*stressQueue
	for i := range 1 + h.rnd.IntN(4) {
		q := h.dial(pick())
		a := args
		a.qid, a.cntlid, a.sqsize = uint16(i+1), cntlid, 127
		if st, err := h.do(q, a.command()); err != nil || !st.OK() {
			return errors.Join(err, st)
		}
		io = append(io, q)
	}
	var last []<-chan struct{}
	for range 20 {
		q := io[h.rnd.IntN(len(io))]
		var batch []*fabrictest.Command
		for range 1 + h.rnd.IntN(16) {
			op := []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite}[h.rnd.IntN(2)]
			batch = append(batch,
				rw(op, uint32(1+h.rnd.IntN(3)), uint64(h.rnd.IntN(128)), 8, make([]byte, 4096)))
		}
		batch = append(batch, dsm(uint32(1+h.rnd.IntN(3)), true, [2]uint64{0, 8}, [2]uint64{64, 8}))
		last = []<-chan struct{}{q.send(batch...), q.ended}
		if h.rnd.IntN(3) == 0 {
			waitAny(last)
		}
		if h.rnd.IntN(8) == 0 {
			ab := command(nvme.AdminAbort, 0, nil)
			ab.SQE.Abort().Set(uint16(1+h.rnd.IntN(len(io))), batch[0].SQE.CID())
			if _, err := h.do(admin, ab); err != nil {
				return err
			}
		}
	}
	switch h.rnd.IntN(4) {
	case 0: // sudden death of the admin queue
		admin.c.r.Post(admin.q.HangUp)
	case 1: // reset and another try
		_, err := h.do(admin, propertySetCommand(nvme.PropertyCC, 0))
		return err
	case 2: // shutdown
		_, err := h.do(admin,
			propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
		return err
	default: // orderly: wait for the last batch
		waitAny(last)
	}
	return nil
}

func waitAny(ch []<-chan struct{}) {
	if len(ch) == 2 {
		select {
		case <-ch[0]:
		case <-ch[1]:
		}
	}
}

// TestStress runs hosts on real reactors while namespaces are added, removed, changed and paused,
// for the race detector and the leak checks: every command of an open queue completes, and nothing
// is left at the end.
func TestStress(t *testing.T) {
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	sub := ramSubsystem(t, 2)
	extra := ramDevice(t, 1<<20, 512)
	testutil.Must(t, target.AddSubsystem(sub))
	cores, stop := startCores(t, target, 3)
	var hosts sync.WaitGroup
	for i := range 4 {
		hosts.Go(func() {
			(&stressHost{
				t: t, cores: cores,
				rnd: rand.New(rand.NewPCG(uint64(i), 7)),
			}).associations(i)
		})
	}
	hosts.Go(func() {
		for range 30 {
			third := namespaces.Config{NSID: 3, Device: extra}
			testutil.Check(t, target.AddNamespace(testSub, third))
			target.Controllers()
			target.CheckHealth()
			target.Stats()
			if err := target.UpdateNamespace(testSub, namespaces.Config{NSID: 1},
				func(old backend.Device) (backend.Device, error) { return old, nil }); err != nil {
				t.Error(err)
			}
			testutil.Check(t, target.PauseNamespace(testSub, 2))
			if _, err := target.UpdateSubsystem(subsystems.Config{
				NQN: testSub, AllowAnyHost: true, Serial: "other",
			}); err != nil {
				t.Error(err)
			}
			testutil.Check(t, target.ResumeNamespace(testSub, 2))
			gone, err := target.RemoveNamespace(testSub, 3)
			testutil.Check(t, err)
			<-gone
		}
	})
	hosts.Wait()

	testutil.Until(t, "sessions and controllers have ended", func() bool {
		return target.Sessions() == 0 && len(target.Controllers()) == 0
	})
	testutil.Check(t, target.Close())
	stop()
}

// startCores runs n reactors with handlers of target until stop is called.
func startCores(t *testing.T, target *Target, n int) (cores []*core, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range n {
		re, err := reactor.New(reactor.Config{Index: i, CPU: -1})
		testutil.Must(t, err)
		arena := testutil.Value(mem.NewArena("stress", 64<<20))(t)
		memory := mem.NewPool(arena, 0)
		h := testutil.Value(target.NewHandler(HandlerConfig{Loop: re, Index: i, Memory: memory}))(t)
		re.Attach(h)
		cores = append(cores,
			&core{
				r: re, memory: memory,
				h: fabrictest.Watch(h, func(s string) { t.Error("contract: " + s) }),
			})
		running.Go(func() {
			if err := re.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	return cores, func() {
		cancel()
		running.Wait()
		for _, c := range cores {
			testutil.Check(t, errors.Join(c.r.Close(), c.memory.Close()))
		}
	}
}

// associations goes through eight associations as the i-th host, and hangs up after each.
func (h *stressHost) associations(i int) {
	args := adminArgs(testSub)
	args.host += string(rune('a' + i))
	args.kato = 120000
	for range 8 {
		if err := h.association(args); err != nil && !errors.Is(err, errEnded) {
			h.t.Error(err)
		}
		for _, q := range h.queues {
			q.c.r.Post(q.q.HangUp)
		}
		for _, q := range h.queues {
			<-q.ended
		}
		h.queues = nil
	}
}

// claims are the controllers that hosts have at the moment.
type claims struct {
	mu   sync.Mutex
	held map[uint16]bool
}

// take reports whether the identifier was free.
func (c *claims) take(id uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.held[id] = true }()
	return !c.held[id]
}

func (c *claims) give(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, id)
}

// TestRaceForTheLastController: hosts on three reactors compete for the two controllers of a
// subsystem (Q10). No identifier is used twice at a time, and each host gets one again and again.
func TestRaceForTheLastController(t *testing.T) {
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	sub := ramSubsystem(t, 1)
	sub.CNTLIDMin, sub.CNTLIDMax = 7, 8
	testutil.Must(t, target.AddSubsystem(sub))
	cores, stop := startCores(t, target, 3)
	var hosts sync.WaitGroup
	c := &claims{held: map[uint16]bool{}}
	for i := range 6 {
		hosts.Go(func() {
			(&stressHost{t: t, cores: cores, rnd: rand.New(rand.NewPCG(uint64(i), 1))}).race(i, c)
		})
	}
	hosts.Wait()
	testutil.Check(t, target.Close())
	stop()
}

// race connects and hangs up until the i-th host has had ten controllers.
func (h *stressHost) race(i int, held *claims) {
	args := adminArgs(testSub)
	args.host += string(rune('a' + i))
	won := 0
	for tries := 0; won < 10 && tries < 100_000; tries++ {
		q := h.dial(h.cores[tries%len(h.cores)])
		c := args.command()
		st, err := h.do(q, c)
		if err != nil || !st.OK() && st.Code() != nvme.ConnectControllerBusy {
			h.t.Error(err, st)
			return
		}
		id := nvme.ConnectResult(c.CQE.DW0()).CNTLID()
		if st.OK() {
			won++
			testutil.True(h.t, id >= 7 && id <= 8 && held.take(id),
				"controller %d is used twice or out of range", id)
		}
		q.c.r.Post(func() {
			if st.OK() {
				held.give(id)
			}
			q.q.HangUp()
		})
		<-q.ended
	}
	testutil.True(h.t, won >= 10, "host %d got only %d controllers", i, won)
}

// TestParallelQueues: a host connects its I/O queues in parallel, as Linux does since 7.3, here
// each twice and on three reactors: of each identifier one is accepted and the other refused (F12).
func TestParallelQueues(t *testing.T) {
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	testutil.Must(t, target.AddSubsystem(ramSubsystem(t, 1)))
	cores, stop := startCores(t, target, 3)
	h := &stressHost{t: t, cores: cores}
	admin := h.dial(cores[0])
	connect := adminArgs(testSub).command()
	for _, c := range []*fabrictest.Command{
		connect,
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)),
	} {
		st, err := h.do(admin, c)
		testutil.MustTrue(t, err == nil && st.OK(), "%v %v", err, st)
	}
	const queues = 16
	var statuses [2 * queues]nvme.Status
	var running sync.WaitGroup
	for i := range statuses {
		q := h.dial(cores[i%3])
		running.Go(func() {
			a := adminArgs(testSub)
			a.qid, a.cntlid = uint16(i%queues+1), nvme.ConnectResult(connect.CQE.DW0()).CNTLID()
			var err error
			if statuses[i], err = h.do(q, a.command()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	for i := range queues {
		a, b := statuses[i], statuses[i+queues]
		if b.OK() {
			a, b = b, a
		}
		testutil.True(t, a.OK() && b.Code() == nvme.CommandSequenceError, "queue %d: %v and %v",
			i+1, a, b)
	}
	for _, q := range h.queues {
		q.c.r.Post(q.q.HangUp)
		<-q.ended
	}
	testutil.Check(t, target.Close())
	stop()
}
