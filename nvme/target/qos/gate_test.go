package qos

import (
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// reactor is the time of a reactor, with a gate.
type reactor struct {
	*Gate
	time     int64
	timer    func() // nil: it does not run
	due      int64
	admitted []any
}

func newReactor() *reactor {
	r := &reactor{time: 1e9}
	r.Gate = NewGate(func() int64 { return r.time }, func(d int64, fn func()) func() {
		r.timer, r.due = fn, r.time+d
		return func() { r.timer = nil }
	}, list.NewSteps(), func(w *Waiter) { r.admitted = append(r.admitted, w.Owner) })
	return r
}

// pass lets time pass, until the timer is due if there is one.
func (r *reactor) pass(d int64) {
	r.time += d
	if fn := r.timer; fn != nil && r.due <= r.time {
		r.timer = nil
		r.steps.Begin()
		fn()
	}
}

// flow makes a flow with one limit and the debt of its first command.
func (r *reactor) flow(t *testing.T, l *Limiter) *Flow {
	f := new(Flow)
	f.Link(Limiters{nil, l, nil}, f, r.time)
	testutil.MustTrue(t, f.Limited(), "the flow has no limit")
	for f.Take(0, r.time) {
	}
	return f
}

// wait lets n commands wait, with their numbers as owners.
func (r *reactor) wait(t *testing.T, f *Flow, n int) (all []Waiter) {
	all = make([]Waiter, n)
	for i := range all {
		all[i].Owner = i
		testutil.MustTrue(t, r.Wait(f, &all[i], 0) && all[i].Listed(), "command %d goes on", i)
	}
	return all
}

// TestOrder: commands go on in their order, at the rate of the limit, and are counted.
func TestOrder(t *testing.T) {
	r := newReactor()
	l := NewLimiter(Limits{IOPS: 10, Burst: MinBurst}, nil)
	f := r.flow(t, l)
	all := r.wait(t, f, 5)
	testutil.True(t, !f.Take(0, r.time), "another command overtakes them")
	testutil.True(t, f.First() == &all[0], "another one has waited for longest")
	for i := range all {
		for range 100 {
			r.pass(1e6)
		}
		testutil.Equal(t, len(r.admitted), i+1, "commands after %d00 ms", i+1)
	}
	testutil.EqualSlices(t, r.admitted, []any{0, 1, 2, 3, 4}, "order")
	testutil.True(t, r.Idle(), "a timer is left")
	i := l.Describe()
	testutil.Equal(t, i.Waits, 5, "waits")
	testutil.Equal(t, i.WaitSeconds, 5*90e-3+10*100e-3, "time of all waits") // less the burst
}

// TestLeave: a command that leaves does not go on, and the last one takes the timer with it.
func TestLeave(t *testing.T) {
	r := newReactor()
	f := r.flow(t, NewLimiter(Limits{IOPS: 10}, nil))
	all := r.wait(t, f, 3)
	for _, i := range []int{1, 0, 2} {
		testutil.True(t, r.timer != nil, "no timer runs")
		r.Leave(f, &all[i])
		testutil.True(t, !all[i].Listed(), "command %d is listed", i)
	}
	testutil.True(t, r.Idle() && r.timer == nil && f.First() == nil, "something is left")
	r.pass(1e9)
	testutil.Equal(t, len(r.admitted), 0, "commands")
}

// TestHurry: commands go on at once when their limit ends, a few in each poll, from all flows in
// turns.
func TestHurry(t *testing.T) {
	r := newReactor()
	l := NewLimiter(Limits{IOPS: 1}, nil)
	var flows []*Flow
	for range 3 {
		f := r.flow(t, l)
		r.wait(t, f, 2*AdmitMost)
		flows = append(flows, f)
	}
	for _, f := range flows {
		f.Link(Limiters{}, f, r.time)
		r.Hurry(f)
		testutil.True(t, !f.Limited(), "the flow has a limit")
	}
	left := func() (n []int) {
		for _, f := range flows {
			i := 0
			for range f.waiting.All() {
				i++
			}
			n = append(n, i)
		}
		return n
	}
	before := left()
	for i := range 6 {
		testutil.True(t, r.Ready(), "the gate has nothing to do before poll %d", i)
		r.steps.Begin()
		testutil.Equal(t, r.Poll(), AdmitMost, "commands in poll %d", i)
		now := left()
		testutil.Equal(t, now[i%3], before[i%3]-AdmitMost, "commands left of flow %d", i%3)
		before = now
	}
	testutil.True(t, r.Idle() && !r.Ready() && r.Poll() == 0, "something is left: %v", before)
}

// TestLooksAtFew: a poll looks at a few of very many flows that wait, and the next one goes on with
// the others.
func TestLooksAtFew(t *testing.T) {
	const n = 10 * LookMost
	r := newReactor()
	flows := make([]Flow, n)
	for i := range flows {
		flows[i].due = r.time + 1e9
		r.flows.Push(&flows[i], &flows[i].node)
	}
	r.Hurry(&flows[n-1])
	r.steps.Begin()
	for polls := range n / LookMost {
		testutil.True(t, r.Ready(), "it has finished after %d polls", polls)
		r.steps.Begin()
		r.Poll()
		looked := 0
		for i := range flows {
			if flows[i].round == r.round {
				looked++
			}
		}
		testutil.Equal(t, looked, (polls+1)*LookMost, "flows after %d polls", polls+1)
	}
}

// TestLimiter: other limits make another limiter with the same counters.
func TestLimiter(t *testing.T) {
	l := NewLimiter(Limits{IOPS: 5}, nil)
	l.waited(3, 7)
	same := NewLimiter(Limits{IOPS: 5}, l)
	other := NewLimiter(Limits{Bandwidth: 5}, l)
	testutil.True(t, same == l && other != l, "the limiters are wrong")
	testutil.Equal(t, *other.Describe(),
		observed.Limits{Bandwidth: 5, Waits: 3, WaitSeconds: 7e-9}, "counters")
	testutil.True(t, NewLimiter(Limits{}, l) == nil, "there is a limiter without limits")
}

// TestTakeSeveral: a command takes its cost from all limits or from none, and the limit that it
// waits at is known.
func TestTakeSeveral(t *testing.T) {
	a := NewLimiter(Limits{IOPS: 1000}, nil)
	b := NewLimiter(Limits{Bandwidth: 1 << 20, Burst: MinBurst}, nil)
	var f Flow
	f.Link(Limiters{a, b, nil}, "host", 1e9)
	testutil.Equal(t, []int{a.Users(), len(f.leases)}[0], 1, "users")
	at, wait := f.take(1<<20, 1e9)
	testutil.True(t, at == nil && wait == 0, "the first command waits")
	for range 500 { // they wait for the bytes, and take no commands
		at, wait = f.take(1, 1e9)
		testutil.MustTrue(t, at == b && wait > 0, "a command waits at %v", at)
	}
	i := slices.IndexFunc(f.leases, func(l lease) bool { return l.of == a })
	testutil.True(t, f.leases[i].Ready(1, 1e9) == 0, "the limit on commands is used up")
	f.Unlink(1e9)
	testutil.True(t, a.Users() == 0 && !f.Limited() && f.Take(1<<30, 1e9), "limits are left")
}
