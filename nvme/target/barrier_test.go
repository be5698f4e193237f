package target

import (
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
	quiet := p.ns.Quiesce(dispatch.QuiesceIO)
	done = func() bool { return closed(quiet) }
	end := p.end
	p.end = func() {
		end()
		p.until("it is quiet", done)
		p.ns.Quiesce(dispatch.QuiesceNothing)
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
