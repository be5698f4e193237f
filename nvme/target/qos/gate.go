package qos

import (
	"math"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

const (
	// AdmitMost is the most commands that go on in one poll. Other hosts wait for them.
	AdmitMost = 32
	// LookMost is the number of flows that a poll looks at.
	LookMost = 128
)

// Flow is the traffic of one host to one namespace on one reactor, with its leases of the limits of
// the host, the subsystem and the namespace. The zero value has no limit. Reactor only.
type Flow struct {
	leases  []lease
	of      Limiters
	at      *Limiter // that the first command waits for
	waiting list.List[Waiter]
	node    list.Node[Flow] // in Gate.flows while commands wait
	due     int64           // when to look again
	round   uint64          // the Gate.round that has looked at it
}

// Waiter is the place of a command that waits at limits, in a field of the command.
type Waiter struct {
	// Owner is the command.
	Owner any
	data  int64 // bytes that it takes of the limits
	since int64
	node  list.Node[Waiter]
}

// Listed reports whether the command waits.
func (w *Waiter) Listed() bool { return w.node.Listed() }

// First returns the command that has waited for longest, nil if none waits.
func (f *Flow) First() *Waiter { return f.waiting.First() }

// Gate has the flows of a reactor with commands that wait at limits. The next poll, or a timer,
// looks at flows that are due. A round looks at all of them, a few in each poll. Reactor only.
type Gate struct {
	now   func() int64
	after func(d int64, fn func()) (stop func())
	steps list.Steps
	admit func(*Waiter)

	flows   list.List[Flow]
	timer   int64  // when the timer looks at them
	stop    func() // stops the timer, nil if it does not run
	more    bool   // the next poll looks at them
	round   uint64
	inRound bool
	nextDue int64 // the earliest due time of the flows that the round has looked at
}

// NewGate makes the gate of a reactor. now is its time in nanoseconds, after its timer, and steps
// counts the flows that the gate looks at. admit is called with a command that waits no longer.
func NewGate(now func() int64, after func(d int64, fn func()) (stop func()), steps list.Steps,
	admit func(*Waiter),
) *Gate {
	return &Gate{now: now, after: after, steps: steps, admit: admit}
}

// Wait takes the cost of a command from the limits of f, or lets the command wait and returns true.
// data is in bytes.
func (g *Gate) Wait(f *Flow, w *Waiter, data int64) bool {
	now := g.now()
	if f.waiting.Empty() {
		at, wait := f.take(data, now)
		if wait == 0 {
			return false
		}
		f.at, f.due, f.round = at, now+wait, g.round
		g.flows.Push(f, &f.node)
		g.nextDue = min(g.nextDue, f.due)
		g.start(f.due)
	}
	w.data, w.since = data, now
	f.waiting.Push(w, &w.node)
	return true
}

// Leave ends the wait of a command.
func (g *Gate) Leave(f *Flow, w *Waiter) {
	f.waiting.Remove(&w.node)
	if !f.waiting.Empty() {
		return
	}
	g.flows.Remove(&f.node)
	if g.flows.Empty() && g.stop != nil {
		g.stop()
		g.stop = nil
	}
}

// Hurry makes a flow due at once, because its limits have changed.
func (g *Gate) Hurry(f *Flow) {
	if f.node.Listed() {
		f.due = g.now()
		g.nextDue, g.more = min(g.nextDue, f.due), true
	}
}

// Idle reports whether no command waits, and no timer runs.
func (g *Gate) Idle() bool { return g.flows.Empty() && g.stop == nil }

// start makes sure that the gate looks at its flows, at the latest at due.
func (g *Gate) start(due int64) {
	if g.stop != nil {
		if g.timer <= due {
			return
		}
		g.stop()
	}
	g.timer = due
	g.stop = g.after(due-g.now(), func() {
		g.stop, g.more = nil, true
		g.Poll()
	})
}

// Ready reports whether Poll would look at flows.
func (g *Gate) Ready() bool { return g.more }

// Poll admits the commands of due flows that their limits allow, and returns their number. The
// rest, beyond AdmitMost commands or LookMost flows, is for the next poll, which begins with the
// other flows.
func (g *Gate) Poll() (n int) {
	if !g.more {
		return 0
	}
	now := g.now()
	if !g.inRound {
		g.inRound, g.nextDue = true, math.MaxInt64
		g.round++
	}
	looked := 0
	for ; n < AdmitMost && looked < LookMost; looked++ {
		f := g.flows.First()
		if f == nil || f.round == g.round {
			break
		}
		g.flows.Remove(&f.node)
		g.flows.Push(f, &f.node)
		if f.round = g.round; f.due <= now {
			n += g.admitSome(f, now, AdmitMost-n)
		}
		if f.node.Listed() {
			g.nextDue = min(g.nextDue, f.due)
		}
	}
	g.steps.Add(looked)
	if f := g.flows.First(); f == nil || f.round == g.round {
		g.inRound = false // it has looked at all
	}
	if g.more = g.inRound || g.nextDue <= now; !g.more && !g.flows.Empty() {
		g.start(g.nextDue)
	}
	return n
}

// admitSome admits commands of a flow, as many as the limits allow and at most most, and returns
// their number.
func (g *Gate) admitSome(f *Flow, now int64, most int) (n int) {
	first, waited := f.at, int64(0)
	for w := f.waiting.First(); w != nil && n < most; w = f.waiting.First() {
		at, wait := f.take(w.data, now)
		if wait > 0 {
			f.at, f.due = at, now+wait
			break
		}
		n, waited = n+1, waited+now-w.since
		g.Leave(f, w)
		g.admit(w)
	}
	if n > 0 {
		first.waited(n, waited)
	}
	return n
}
