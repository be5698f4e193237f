package target

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

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
