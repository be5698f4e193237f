package authn

import "sync/atomic"

// Interval is the interval after which the host of a controller proves its identity again (ADR
// 0032). Only a host can begin, so one command of the controller is completed with Authentication
// Required, without DNR: Linux then authenticates the admin queue and its I/O queues once more, and
// sends the command again. All other commands go on. The first command that comes when the host is
// due, refused or not, starts the time after which the controller ends. A host that sends none is
// idle and keeps its controller.
//
// All times are those of the loop, in nanoseconds. Asks and Refuse are for all reactors, the other
// methods for that of the controller.
type Interval struct {
	ask     atomic.Uint32 // asking
	proven  int64         // when the host last authenticated
	started int64         // when a command came after it was due; 0: none has
	stopped bool
}

const (
	// Limit is the time that a host has after its first command, in nanoseconds.
	Limit = int64(60e9)
	// step is the time that a host has to begin until another command is refused.
	step = int64(10e9)
	// stagger is the number of controllers that are due one after the other.
	stagger = 64
)

// asking is the kind of command that is refused next.
type asking uint32

const (
	askNone asking = iota
	// askFirst: a command that the host repeats.
	askFirst
	// askAny: any that may be refused, since no command that the host repeats has come for a while.
	askAny
	// askStarted is a flag besides: a command has started the time of the host.
	askStarted asking = 4
)

// Action follows Check.
type Action uint8

// The actions.
const (
	Wait Action = iota
	// Ask: the queues of the controller call Refuse from now on, for as long as Asks.
	Ask
	// End: the host has not authenticated in time.
	End
)

// Stop ends the interval for good.
func (i *Interval) Stop() {
	i.stopped = true
	i.ask.Store(uint32(askNone))
}

// Prove notes that the host has authenticated at a time. Schedule follows.
func (i *Interval) Prove(at int64) { i.proven, i.started = at, 0 }

// Schedule returns the time until Check, from now; 0: never. It is called when valid changes, which
// is how long an authentication is valid; 0: for ever. ok is false if the time of the host has
// started, which goes on. Controllers that were created together have consecutive identifiers. They
// are due one after the other, up to a tenth earlier: exchanges take turns, and their records have
// limits.
func (i *Interval) Schedule(now, valid int64, cntlid uint16) (in int64, ok bool) {
	if i.stopped || i.started != 0 && valid > 0 {
		return 0, false
	}
	i.ask.Store(uint32(askNone))
	if i.started = 0; valid == 0 {
		return 0, true
	}
	valid -= valid / (10 * stagger) * int64(cntlid%stagger)
	return max(i.proven+valid-now, 1), true
}

// Check is called when the host is due, and again after the time that it returns; 0: not before
// Came or Schedule returns one. running: an exchange has begun, which has a deadline of its own.
func (i *Interval) Check(now int64, running bool) (do Action, in int64) {
	left := i.started + Limit - now
	switch {
	case running:
		return Wait, step
	case i.started == 0:
		i.ask.Store(uint32(askFirst))
		return Ask, 0
	case left <= 0:
		return End, 0
	}
	i.ask.Store(uint32(askAny | askStarted))
	return Ask, min(step, left)
}

// Came starts the time of the host with the command that Refuse has seen at a time, and returns the
// time until Check; 0: the time has started already, or the host has authenticated since.
func (i *Interval) Came(now, at int64) (in int64) {
	if i.stopped || i.started != 0 || at < i.proven {
		return 0
	}
	i.started = now
	return step
}

// Asks reports whether Refuse may refuse a command.
func (i *Interval) Asks() bool { return asking(i.ask.Load())&^askStarted != askNone }

// Refuse reports whether a command is refused with Authentication Required. repeats: the host
// repeats such commands. late: it may be refused if none comes. started: Came follows.
func (i *Interval) Refuse(repeats, late bool) (refused, started bool) {
	a := asking(i.ask.Load())
	level := a &^ askStarted
	refused = level != askNone && (repeats || level == askAny && late)
	next := level | askStarted
	switch {
	case level == askNone || !refused && a == next:
		return false, false
	case repeats:
		next = askNone
	case refused:
		next = askFirst | askStarted // the command that Linux sends in place of this one
	}
	if !i.ask.CompareAndSwap(uint32(a), uint32(next)) {
		return false, false // another queue was faster
	}
	return refused, a&askStarted == 0
}
