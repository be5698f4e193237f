package target

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// barrierTest has a host b with queues on all three reactors, of which two have a channel, and a
// host a. The tests look at the writes of b to block 8.
type barrierTest struct {
	*harness
	readable
	dev     *backendtest.Faulty
	ns      *namespaces.Namespace
	a, b    *host
	reached []*session // the queues of the writes to block 8 that the device got; nil: not b's
	all     []*fabrictest.Command
	user    *barrierUser
	lost    map[*fabrictest.Command]bool // their queue ends
	done    func() bool                  // the barrier has drained
	end     func()                       // ends it
	undo    func()                       // has the IO go on that was there before
}

// readable is a device that has memory for zero-copy reads when a test asks for it.
type readable struct {
	backend.Device
	inPlace bool
}

func (d *readable) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	c, err := d.Device.OpenChannel(r)
	return readableChannel{c, d}, err
}

type readableChannel struct {
	backend.Channel
	d *readable
}

func (c readableChannel) StartZeroCopyRead(segs []mem.Segment, _, _ int64) ([]mem.Segment, bool) {
	return segs, c.d.inPlace
}

func (readableChannel) EndZeroCopyRead([]mem.Segment, int64, int64) {}

func (readableChannel) WriterWaits() bool { return false }

// barrierUser is one that needs a barrier.
type barrierUser struct {
	name    string
	prepare func(*barrierTest)
	start   func(*barrierTest)
	waits   []string // for which IOs it waits
}

func newBarrierTest(t *testing.T) *barrierTest {
	sub, dev := hangingSubsystem(t)
	p := &barrierTest{readable: readable{Device: dev}, dev: dev, end: func() {}, undo: func() {}}
	p.done = func() bool { return false }
	sub.Namespaces[0].Device = &p.readable
	p.harness = newHarness(t, 3, sub)
	p.ns, _ = p.target.namespace(testSub, 1)
	p.a, p.b = p.numbered(0, 1), p.numbered(1, 3)
	p.ok(p.a.io[0], register(1))
	p.ok(p.b.io[0], register(2))
	for _, q := range p.b.io[:2] {
		p.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	}
	dev.Fail(func(io *backend.IO) error {
		if dispatch.ChangesBlocks(io) && io.Off == 8*512 {
			p.reached = append(p.reached, queueOf(io))
		}
		return nil
	})
	return p
}

// write sends a write to block 8 on a queue of b.
func (p *barrierTest) write(i int) *fabrictest.Command {
	c := p.send(p.b.io[i], write(8, 'b'))
	p.all = append(p.all, c)
	return c
}

// hold has the device hold the next write to block 8, or a part of it.
func (p *barrierTest) hold(c *fabrictest.Command) {
	p.t.Helper()
	held := p.dev.Held()
	p.dev.Hold(func(io *backend.IO) bool {
		return dispatch.ChangesBlocks(io) && io.Off == 8*512 && p.dev.Held() == held
	})
	p.all = append(p.all, p.send(p.b.io[0], c))
	p.until("the device has the IO", func() bool { return p.dev.Held() == held+1 })
}

// lock locks block 8.
func (p *barrierTest) lock() (l *dispatch.Lock, held func() bool) {
	is := false
	l = &dispatch.Lock{
		Namespace: &p.ns.Namespace, Owner: new(compound.Compound), Post: p.raw[0].post,
		Blocks: backend.Range{Off: 8 * 512, End: 9 * 512}, OnHeld: func() { is = true },
	}
	l.Acquire()
	return l, func() bool { return is }
}

// quiesce begins to quiesce the namespace, before the barrier ends. p.end then also waits until the
// namespace is quiet, and ends the quiesce.
func (p *barrierTest) quiesce() (done func() bool) {
	quiet := p.ns.Quiesce(dispatch.QuiesceIO, false)
	done = func() bool { return closed(quiet) }
	end := p.end
	p.end = func() {
		end()
		p.until("it is quiet", done)
		p.ns.Quiesce(dispatch.QuiesceNothing, false)
	}
	return done
}

// stick has the device hold a write of the queue of b on reactor 2. It becomes late when that queue
// ends.
func (p *barrierTest) stick() {
	held := p.dev.Held()
	p.dev.Hold(opIs(backend.OpWrite))
	p.lost = map[*fabrictest.Command]bool{p.write(1): true}
	p.until("the device has the late write", func() bool { return p.dev.Held() == held+1 })
}

func (p *barrierTest) preempt(action nvme.ReservationAction) {
	c := p.send(p.a.io[0], preempt(action, 1, 2, nvme.WriteExclusive))
	p.a.untilChanged(hasOneRegistrant)
	p.end = func() {
		p.until("the preempt completes", func() bool { return c.Done })
		if st := c.CQE.Status(); !st.OK() {
			p.t.Error(st)
		}
	}
	p.done = func() bool { return c.Done }
}

var barrierUsers = []barrierUser{
	{
		name: "quiesce", waits: []string{"device", "orphan", "compound", "zero copy"},
		start: func(p *barrierTest) { p.done = p.quiesce() },
	},
	{
		name: "lock", waits: []string{"device", "compound"},
		start: func(p *barrierTest) {
			l, held := p.lock()
			p.done = held
			p.end = func() {
				p.until("the lock is held", held)
				l.Release()
			}
		},
	},
	{
		name: "preempt", waits: []string{"device", "orphan", "compound"},
		prepare: func(p *barrierTest) { p.ok(p.b.io[0], acquire(2, nvme.WriteExclusive)) },
		start:   func(p *barrierTest) { p.preempt(nvme.ReservationPreempt) },
	},
	{
		name: "abort", waits: []string{"device", "orphan", "compound"},
		prepare: func(p *barrierTest) { p.ok(p.b.io[0], acquire(2, nvme.WriteExclusive)) },
		start:   func(p *barrierTest) { p.preempt(nvme.ReservationPreemptAndAbort) },
	},
	{
		name:    "late write",
		prepare: func(p *barrierTest) { p.stick() },
		start: func(p *barrierTest) {
			p.b.io[1].HangUp()
			p.end = p.dev.Release
		},
	},
}

// barrierIOs are writes of b that there are when a barrier begins.
var barrierIOs = []struct {
	name  string
	begin func(*barrierTest)
}{
	{"none", func(*barrierTest) {}},
	{"pending", func(p *barrierTest) {
		p.dev.Full(true)
		p.write(0)
		p.w.Step()
		p.undo = func() { p.dev.Full(false) }
	}},
	{"held", func(p *barrierTest) {
		if p.user.name == "late write" {
			l, _ := p.lock()
			p.undo = l.Release
		} else {
			p.stick()
			p.b.io[1].HangUp()
			p.undo = p.dev.Release
		}
		p.w.Settle()
		p.write(0)
		p.w.Settle()
	}},
	{"device", func(p *barrierTest) { p.hold(write(8, 'b')); p.undo = p.dev.Release }},
	{"orphan", func(p *barrierTest) {
		p.hold(write(8, 'b'))
		p.w.Advance(5 * time.Second)
		p.undo = p.dev.Release
	}},
	{"compound", func(p *barrierTest) {
		p.hold(dsm(1, true, [2]uint64{8, 1}, [2]uint64{20, 1}))
		p.undo = p.dev.Release
	}},
	{"zero copy", func(p *barrierTest) {
		ch, io := p.raw[1].channels[0], &backend.IO{Op: backend.OpRead, Len: 512}
		p.inPlace = true
		_, ok := ch.StartZeroCopy(io, nil)
		testutil.MustTrue(p.t, ok, "no zero copy")
		p.inPlace = false
		p.undo = func() { ch.EndZeroCopy(io, nil) }
	}},
}

// barrierEvents are the events while a barrier exists or is about to begin.
var barrierEvents = []struct {
	name   string
	happen func(*barrierTest)
}{
	{"nothing", func(*barrierTest) {}},
	{"second barrier", func(p *barrierTest) {
		if p.user.name != "quiesce" {
			p.quiesce()
			return
		}
		end := p.end
		l, held := p.lock()
		p.end = func() {
			end()
			p.until("the lock is held", held)
			l.Release()
		}
	}},
	{"new channel", func(p *barrierTest) {
		p.write(2)
		p.until("the channel is open", func() bool {
			ch := p.raw[0].channel(p.ns) // none is made while orphans are out
			return ch == nil || ch.State().Open || quiesced(ch)
		})
	}},
	{"removed", func(p *barrierTest) {
		gone, err := p.target.RemoveNamespace(testSub, 1)
		p.must(err)
		end := p.end
		p.end = func() {
			end()
			p.during(func() error { <-gone; return nil })
		}
	}},
}

// TestBarriers: a barrier waits for the right IOs, with any IO at its begin and any event
// meanwhile. No write reaches the device too early, and all commands end.
func TestBarriers(t *testing.T) {
	t.Parallel() // it computes
	for i := range barrierUsers {
		user := &barrierUsers[i]
		for _, io := range barrierIOs {
			for _, event := range barrierEvents {
				t.Run(user.name+"/"+io.name+"/"+event.name, func(t *testing.T) {
					p := newBarrierTest(t)
					p.user = user
					if user.prepare != nil {
						user.prepare(p)
					}
					io.begin(p)
					user.start(p)
					p.w.Settle()
					before := len(p.reached)
					event.happen(p)
					p.w.Settle()
					waits := slices.Contains(user.waits, io.name) || user.name == "late write"
					testutil.True(t, !p.done() || !waits, "it does not wait for the IO")
					if event.name != "removed" {
						p.write(0) // arrives
					}
					p.w.Settle()
					n := len(p.reached)
					p.undo()
					p.w.Settle()
					if user.name != "late write" || p.dev.Held() > 0 { // it is there still
						n = len(p.reached)
					}
					testutil.True(t, n == before, "%d writes reach the device", n-before)
					p.end()
					p.w.Settle()
					p.w.Advance(2 * time.Second) // refusals are delayed
					for _, c := range p.all {
						p.until("a command ends", func() bool { return c.Done || p.lost[c] })
					}
					p.w.Settle()
					p.nothingLeft()
				})
			}
		}
	}
}

// quiesced reports whether new IOs of a channel wait.
func quiesced(ch *channel) bool { return ch.State().Quiesce == dispatch.QuiesceIO }

// nothingLeft checks that barriers leave no state on the reactors.
func (p *barrierTest) nothingLeft() {
	p.t.Helper()
	for i, h := range p.raw {
		ch := h.channel(p.ns)
		if ch != nil && ch.State().Busy != (dispatch.State{}).Busy {
			p.t.Errorf("reactor %d: %+v", i, ch.State())
		}
	}
}

// TestLockOfGivenUp: a lock no longer waits for an IO after its command is given up.
func TestLockOfGivenUp(t *testing.T) {
	for _, c := range []*fabrictest.Command{
		write(8, 'b'), dsm(1, true, [2]uint64{8, 1}, [2]uint64{20, 1}),
	} {
		p := newBarrierTest(t)
		p.hold(c)
		l, held := p.lock()
		p.w.Settle()
		testutil.True(t, !held(), "the lock does not wait for the IO")
		p.w.Advance(50 * time.Second) // discards have more time
		testutil.True(t, held(), "the lock waits for what was given up")
		p.dev.Release()
		l.Release()
		p.w.Settle()
		p.nothingLeft()
	}
}

// TestFenceOfManyIOs: a preempt waits for all that the device has of a queue, also if a step does
// not get to the end of the queue.
func TestFenceOfManyIOs(t *testing.T) {
	p := newBarrierTest(t)
	p.ok(p.b.io[0], acquire(2, nvme.WriteExclusive))
	p.dev.Hold(opIs(backend.OpWrite))
	for range 2 * stepMost * 3 / 4 {
		p.write(0)
	}
	p.until("the device has them", func() bool { return p.dev.Held() == len(p.all) })
	p.preempt(nvme.ReservationPreempt)
	n := p.raw[1].channels[0].State().Busy.Awaited
	testutil.True(t, n == len(p.all), "it waits for %d IOs of %d", n, len(p.all))
	p.dev.Release()
	p.end()
	p.allDone(p.all, nvme.Success)
	p.nothingLeft()
}

// stepMost is how many commands a piece of a walk completes at most.
const stepMost = 65

// newSteps has a host with many writes, which the device does not take yet.
func newSteps(t *testing.T, holds bool) (p *barrierTest, all []*fabrictest.Command) {
	p = newBarrierTest(t)
	for range 8 { // besides three
		p.b.connectIO(1)
	}
	if holds {
		p.ok(p.b.io[0], acquire(2, nvme.WriteExclusive))
	}
	p.dev.Full(true)
	for i := range 8 {
		for range 100 {
			all = append(all, p.write(3+i))
		}
		p.w.Step()
	}
	return p, all
}

func doneOf(all []*fabrictest.Command) (n int) {
	for _, c := range all {
		if c.Done {
			n++
		}
	}
	return n
}

// TestPreemptSteps: a preempt completes the commands of a host some at a time, and meanwhile
// nothing of them reaches the device.
func TestPreemptSteps(t *testing.T) {
	for _, preemption := range preemptions {
		p, all := newSteps(t, !preemption.shared)
		action := nvme.ReservationPreempt
		if preemption.abort {
			action = nvme.ReservationPreemptAndAbort
		}
		c := p.send(p.a.io[0], preempt(action, 1, 2, nvme.WriteExclusive))
		p.until("the round begins", func() bool {
			before := doneOf(all)
			p.w.Step()
			if n := doneOf(all) - before; n > 4*stepMost {
				t.Fatalf("%s: a poll completes %d", preemption.name, n)
			}
			return doneOf(all) > 0
		})
		testutil.MustTrue(t, doneOf(all) != len(all), "%s: all at once", preemption.name)
		p.dev.Full(false)
		p.allDone(all, nvme.AbortedPreempt)
		p.allDone([]*fabrictest.Command{c}, nvme.Success)
		testutil.True(t, len(p.reached) == 0, "%s: %d writes reach the device", preemption.name,
			len(p.reached))
		p.nothingLeft()
	}
}

// holdWalks begins a walk that the others of a reactor wait for until release is called. step lets
// each kind take a step.
func holdWalks(h *Handler) (step, release func()) {
	var rest func()
	post, held := h.dispatch.Post, true
	h.dispatch.Post = func(fn func()) { rest = fn }
	h.dispatch.Start(&dispatch.Walk{Done: func() {}, Next: func() int {
		if held {
			return 64 // a piece, see list.Pieces
		}
		return 0
	}})
	h.dispatch.Post = post
	step = func() { rest() }
	release = func() {
		for held = false; rest != nil; h.run() {
			fn := rest
			rest = nil
			fn()
		}
	}
	return step, release
}

// waitingIOs is how many IOs of channel 0 the device does not have.
func waitingIOs(h *Handler) int {
	left := h.channels[0].State().Busy
	return left.Pending + left.Held
}

// TestEndSteps: the commands of queues that end are completed some at a time, and meanwhile nothing
// of them reaches the device.
func TestEndSteps(t *testing.T) {
	p, _ := newSteps(t, false)
	p.b.hangUp()
	h := p.raw[1]
	left := waitingIOs(h)
	testutil.MustTrue(t, left != 0 && h.channels[0].State().Busy.Walks > 0, "all at once")
	p.dev.Full(false)
	p.until("the queues end", func() bool {
		before := waitingIOs(h)
		p.w.Step()
		if n := before - waitingIOs(h); n > 4*stepMost {
			t.Fatalf("a poll completes %d", n)
		}
		return p.target.Sessions() == 2
	})
	p.w.Settle()
	testutil.True(t, len(p.reached) == 0, "%d writes reach the device", len(p.reached))
	p.nothingLeft()
}

// TestOneLookForTimeouts: a look for timeouts that takes long is the only one.
func TestOneLookForTimeouts(t *testing.T) {
	r, dev := hangingHarness(t, 1)
	q := r.connectHost(1).io[0]
	dev.Hold(nil)
	h := r.raw[0]
	_, release := holdWalks(h)
	var all []*fabrictest.Command
	for range 5 {
		all = append(all, r.send(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))))
		r.w.Advance(time.Duration(timeoutInterval))
	}
	testutil.Equal(t, h.channels[0].State().Busy.Walks, 1+1, "the held walk, and looks that wait")
	release()
	r.w.Advance(time.Minute)
	for _, c := range all {
		testutil.True(t, c.Done, "a command is not given up")
	}
	dev.Release()
	r.w.Settle()
}

// TestLongRounds: commands time out, and queues end, while rounds of fences take long.
func TestLongRounds(t *testing.T) {
	r, dev := hangingHarness(t, 1)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	dev.Full(true)
	var all []*fabrictest.Command
	for _, q := range []*fabrictest.Queue{a.io[0], b.io[0]} {
		all = append(all, r.send(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))))
	}
	h, left := r.raw[0], 20_000
	r.until("the device refuses them", func() bool {
		return h.channels[0].State().Open && waitingIOs(h) > 0
	})
	h.stopTimeouts()
	h.stopTimeouts = func() {} // no timer looks for them
	h.loop = &slowLoop{Loop: h.loop, more: int64(3 * time.Second)}
	h.dispatch.Exclude = func(*dispatch.Channel, *dispatch.Round) (next func() int) {
		return func() int {
			left = max(left-1, 0)
			return min(left, 1)
		}
	}
	r.send(a.io[0], acquire(1, nvme.WriteExclusive))
	r.until("the round begins", func() bool { return left < 20_000 })
	h.checkTimeouts()
	b.hangUp()
	r.until("the queue ends and the command times out", func() bool {
		r.w.Step()
		return all[0].Done && r.target.Sessions() == 2
	})
	testutil.True(t, left != 0, "they had to wait for the round")
	dev.Full(false)
	r.w.Settle()
}

// TestPreemptLeavesOthers: the compound of a command that is aborted may carry out one of another
// host at once, which is not aborted.
func TestPreemptLeavesOthers(t *testing.T) {
	r, dev := hangingHarness(t, 1)
	a, b, other := r.numbered(0, 1), r.numbered(1, 5), r.numbered(2, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Full(true)
	var all []*fabrictest.Command
	for range 2 * mostCompounds / 3 {
		c := dsm(1, true, [2]uint64{0, 1}, [2]uint64{5, 1})
		all = append(all, r.send(b.io[len(all)/100], c))
	}
	flush := r.send(other.io[0], command(nvme.NVMFlush, nvme.NSIDAll, nil))
	s := r.raw[0].sessions.At(r.raw[0].sessions.Len() - 1)
	testutil.MustTrue(t, slices.ContainsFunc(s.cmds[:s.used], func(c *cmd) bool {
		return c.postponed.Listed()
	}), "the flush is not postponed")
	c := r.send(a.io[0], preempt(nvme.ReservationPreemptAndAbort, 1, 2, nvme.WriteExclusive))
	r.until("the preempt completes", func() bool { return c.Done })
	dev.Full(false)
	r.allDone(all, nvme.AbortedPreempt)
	r.allDone([]*fabrictest.Command{c, flush}, nvme.Success)
}

// TestStopSteps: the queues of a controller that is lost are stopped, and disconnected, some at a
// time, each with a look at all of its commands. Others are served meanwhile.
func TestStopSteps(t *testing.T) {
	const queues, depth = 60, 1024
	for name, end := range map[string]func(c *controller){
		"stop":       (*controller).stopIO,
		"disconnect": func(c *controller) { c.fail(errors.New("a test")) },
	} {
		r := newHarness(t, 1, ramSubsystem(t, 1))
		lost, other := r.connectHost(queues), r.numbered(1, 1)
		c := r.target.find(testSub).lookup(lost.cntlid)
		all := c.allQueues()
		for _, s := range all {
			s.grow(depth)
			s.used = depth
		}
		r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		left := func() (n int) {
			for _, s := range all {
				if !s.stopped && s.why == nil {
					n++
				}
			}
			return n
		}
		end(c)
		before := left()
		testutil.MustTrue(t, before >= queues, "%s: all at once, but for %d queues", name, before)
		for before > 0 {
			r.send(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.w.Step()
			n := left()
			testutil.MustTrue(t, before-n <= 2 && other.io[0].Outstanding() <= 2,
				"%s: %d queues in a turn, %d reads wait", name, before-n,
				other.io[0].Outstanding())
			before = n
		}
		lost.hangUp()
	}
}

// twoPaths is a host with a controller at each of two ports. Their queues are on different
// reactors. The storage completes IOs when the test tells it to.
type twoPaths struct {
	*harness
	dev  *backendtest.Faulty
	a, b *host
}

func newTwoPaths(t *testing.T, kato uint32) *twoPaths {
	t.Helper()
	sub, dev := faultySubsystem(t)
	p := &twoPaths{harness: newHarness(t, 3, sub), dev: dev}
	at := info(nvme.TransportTCP)
	p.a = p.connectHostInfo(1, at, func(a *connectArgs) { a.kato = kato })
	at.PortID = 2
	p.b = p.connectHostInfo(0, at)
	p.b.connectIO(2)
	return p
}

// lateOn is how much late writes have on a channel.
func lateOn(ch *channel) int {
	left := ch.State().Busy
	return left.Awaited + left.Late + left.Held
}

func filled(b byte) []byte { return bytes.Repeat([]byte{b}, 512) }

func write(slba uint64, b byte) *fabrictest.Command {
	return rw(nvme.NVMWrite, 1, slba, 1, filled(b))
}

// TestManyLateWrites: commands that wait for late writes, however many, are not looked at again
// before these are back. A queue has one announcement for all its late writes.
func TestManyLateWrites(t *testing.T) {
	p := newTwoPaths(t, 0)
	p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	p.dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite && io.Off < 8*512 })
	for slba := range uint64(8) { // they become slow one after the other
		p.send(p.a.io[0], write(slba, 'a'))
		p.until("the device has it", func() bool { return p.dev.Held() == int(slba)+1 })
		p.w.Advance(2 * time.Duration(timeoutInterval))
	}
	p.w.Advance(2 * time.Duration(timeoutInterval))
	var waiting []*fabrictest.Command
	for i := range uint64(100) {
		waiting = append(waiting, p.send(p.b.io[0], write(i%8, 'b')))
	}
	p.w.Settle()
	want := dispatch.State{Open: true}
	want.Busy.Held, want.Busy.Late = 100, 1
	testutil.Equal(t, p.raw[2].channels[0].State(), want, "the channel")
	p.ok(p.b.io[0], write(8, 'b'))
	testutil.True(t, p.ok(p.b.admin, abortCommand(1, waiting[99].SQE.CID())).CQE.DW0() == 0,
		"a write that waits is not aborted")
	p.dev.Release()
	for i, c := range waiting {
		p.until("a write completes", func() bool { return c.Done })
		st := c.CQE.Status()
		testutil.True(t, st.OK() == (i < 99), "write %d: %v", i, st)
	}
	for slba := range uint64(9) {
		got := p.ok(p.b.io[0], rw(nvme.NVMRead, 1, slba, 1, make([]byte, 512)))
		testutil.True(t, got.Data[0] == 'b', "block %d begins with %q", slba, got.Data[0])
	}
	for i, h := range p.raw[1:] {
		testutil.True(t, lateOn(h.channels[0]) <= 0, "reactor %d still knows of late writes", i+1)
	}
}

// TestNothingAfterKeepAlive: after the keep alive timer of a path has expired, new commands of the
// path, and its commands that wait for the device, are not carried out.
func TestNothingAfterKeepAlive(t *testing.T) {
	p := newTwoPaths(t, 4000)
	p.ok(p.a.io[0], write(0, 'x'))
	p.dev.Full(true)
	waits := p.send(p.a.io[0], write(0, 'a'))
	p.w.Step()
	s := p.raw[1].sessions.At(0)
	s.stop()
	p.dev.Full(false)
	p.until("the write is aborted", func() bool { return waits.Done })
	testutil.Equal(t, waits.CQE.Status(), nvme.AbortRequested, "a write that waits for the device")
	p.status(p.a.io[0], write(0, 'a'), nvme.CommandSequenceError)
	got := p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data
	testutil.True(t, got[0] == 'x', "block 0 begins with %q", got[0])
}

// stuckPart is a host with storage that keeps one IO of a command, and carries out the others some
// at a time.
type stuckPart struct {
	*harness
	slow, stuck *backendtest.Faulty
	command     *fabrictest.Command
	other       *fabrictest.Queue // of the host
	begun       int64
}

// stuckParts are commands of 200 parts, of which the second one, block 1, will be stuck.
func stuckParts() map[string]*fabrictest.Command {
	ranges, sources := make([][2]uint64, 200), make([]source, 200)
	for i := range sources {
		ranges[i] = [2]uint64{uint64(i), 1}
		sources[i] = source{slba: uint64(1000 + i), blocks: 1}
	}
	return map[string]*fabrictest.Command{
		"Dataset Management": dsm(1, true, ranges...),
		"Copy":               copyTo(0, nvme.CopyRanges, sources...),
	}
}

func newStuckPart(t *testing.T, c *fabrictest.Command, timeout time.Duration) *stuckPart {
	t.Helper()
	sub, slow := faultySubsystem(t)
	stuck := backendtest.NewFaulty(slow)
	sub.Namespaces[0].Device, sub.Namespaces[0].Timeout = stuck, timeout
	p := &stuckPart{harness: newHarness(t, 3, sub), slow: slow, stuck: stuck, command: c}
	q := p.connectHost(1).io[0]
	p.other = p.connectHost(0).connectIO(2)
	for _, q := range []*fabrictest.Queue{q, p.other} { // opens the channel
		p.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	}
	stuck.Hold(func(io *backend.IO) bool { return io.Op != backend.OpRead && io.Off == 512 })
	slow.Fail(func(*backend.IO) error { slow.Hold(nil); return nil }) // hold the IOs after Release
	p.send(q, c)
	p.w.Settle()
	p.begun = p.now()
	return p
}

func (p *stuckPart) now() int64 { return p.w.Reactors[0].Now() }

// step lets the storage carry out its IOs, except the stuck one, after d.
func (p *stuckPart) step(d time.Duration) {
	p.w.Advance(d)
	p.slow.Release()
	p.w.Settle()
}

// goOn ends the steps.
func (p *stuckPart) goOn() {
	p.slow.Fail(nil)
	p.slow.Release()
	p.w.Settle()
}

// TestLatePart: a part of a command is late although others go on.
func TestLatePart(t *testing.T) {
	for name, c := range stuckParts() {
		p := newStuckPart(t, c, 0)
		for range 5 {
			p.step(time.Duration(slowWrite) * 3 / 5)
		}
		p.goOn()
		retry := p.send(p.other, rw(nvme.NVMWriteZeroes, 1, 0, 2, nil))
		p.ok(p.other, rw(nvme.NVMWriteZeroes, 1, 2, 1, nil))
		testutil.True(t, !retry.Done && !c.Done, "%s: retry %v, command %v", name, retry.Done,
			c.Done)
		p.stuck.Release()
		p.until(name, func() bool { return retry.Done && c.Done })
	}
}

// TestTimeoutOfPart: a command times out for the part that is stuck although others go on.
func TestTimeoutOfPart(t *testing.T) {
	for name, c := range stuckParts() {
		p := newStuckPart(t, c, time.Second)
		limit := time.Second
		if c.SQE.Opcode() == nvme.NVMDatasetManagement {
			limit *= ranges
		}
		for !c.Done && time.Duration(p.now()-p.begun) < 3*limit {
			p.step(limit * 3 / 5)
		}
		testutil.Equal(t, c.CQE.Status()&^nvme.More, notReady, "%s: done %v", name, c.Done)
		p.goOn()
		p.stuck.Release()
		p.w.Settle()
	}
}

// TestLateAllocations: the end of a queue allocates nothing for each of its writes, which are at
// most as many as its entries, and become late in one step.
func TestLateAllocations(t *testing.T) {
	r, dev := hangingHarness(t, 1)
	h := r.connectHost(2)
	r.ok(h.io[0], write(0, 'x'))
	dev.Hold(nil)
	for i := range 100 {
		for _, q := range h.io {
			r.send(q, write(uint64(i), 'x'))
		}
	}
	r.w.Settle()
	c := r.target.find(testSub).lookup(h.cntlid)
	queue := uint16(0)
	allocations := testing.AllocsPerRun(1, func() { // which calls it twice
		queue++
		r.raw[0].holdLate(c.queues[queue], r.raw[0].loop.Now())
	})
	testutil.Equal(t, queue, 2, "queues")
	testutil.True(t, allocations < 50, "%v allocations for 100 writes", allocations)
	testutil.Equal(t, r.raw[0].channels[0].State().Busy.Awaited, 200, "late writes")
	dev.Release()
	r.w.Settle()
}
