package dispatch

import "github.com/nvmf-target/nvmf-target/internal/list"

// Delays has commands that one timer ends, each of them a fixed time after it was added. A command
// is on one at a time.
type Delays[T any] struct {
	Now   func() int64
	After func(d int64, fn func()) (stop func())
	Delay int64 // nanoseconds
	// End is called when the time is over. It removes the command, or adds it again.
	End func(*T)

	list list.List[Delayed[T]]
	stop func() // stops the timer, nil if it does not run
}

// Delayed is the place of a command.
type Delayed[T any] struct {
	of   *T
	in   *Delays[T]
	due  int64
	node list.Node[Delayed[T]]
}

// delayBatch is how many commands the timer ends at a time.
const delayBatch = 128

// Push adds a command with its place.
func (l *Delays[T]) Push(of *T, d *Delayed[T]) {
	d.of, d.in, d.due = of, l, l.Now()+l.Delay
	l.list.Push(d, &d.node)
	if l.stop == nil {
		l.start()
	}
}

// start sets the timer for the oldest command.
func (l *Delays[T]) start() {
	l.stop = l.After(max(l.list.First().due-l.Now(), 1e6), func() {
		l.stop = nil
		now := l.Now()
		for range delayBatch {
			d := l.list.First()
			if d == nil || d.due > now {
				break
			}
			d.End()
		}
		if !l.list.Empty() && l.stop == nil {
			l.start()
		}
	})
}

// Empty reports whether there are none.
func (l *Delays[T]) Empty() bool { return l.list.Empty() }

// Listed reports whether the command is delayed.
func (d *Delayed[T]) Listed() bool { return d.node.Listed() }

// End ends the delay of a command now.
func (d *Delayed[T]) End() { d.in.End(d.of) }

// Remove removes a command that is delayed.
func (d *Delayed[T]) Remove() {
	l := d.in
	l.list.Remove(&d.node)
	if l.list.Empty() && l.stop != nil {
		l.stop()
		l.stop = nil
	}
}
