package dispatch

import (
	"log/slog"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

const (
	// batchSize is how many IOs a channel gives to its device, and takes back, in one step.
	batchSize = 64
	// pollMost is how many channels a Poll visits.
	pollMost = 256
	// turnBytes is how much data devices get between two calls of Poll, and may free in one, since
	// some copy it at once. The last IO may exceed it, and those up to smallBytes do not wait.
	turnBytes  = 256 << 10
	smallBytes = 8 << 10
)

// Config has the parts of a reactor that its channels use.
type Config struct {
	// Now returns the time of the reactor in nanoseconds.
	Now func() int64
	// Post runs a function on the reactor, and then Process. Any goroutine may call it.
	Post func(func())
	// Steps counts the steps of a turn.
	Steps list.Steps
	// Reactor is the reactor as devices see it.
	Reactor backend.Reactor
	Log     *slog.Logger
	// Queue returns the queue of the command that an IO works for, nil if it was given up.
	Queue func(*backend.IO) *Queue
	// Done passes an IO with its error to its command.
	Done func(*backend.IO)
	// Exclude returns the steps of a visit of the commands that there are by then, see Round.
	Exclude func(*Channel, *Round) (next func() int)
}

// Queue is a queue of a host, as devices are concerned.
type Queue struct {
	Host reservation.HostHandle
	// Admin is set for an admin queue: its IOs are the controller's own, for example the flush of a
	// command that write protects a namespace, and no reservation refuses them.
	Admin bool
	// Over is set when the queue has ended: devices get nothing more of it.
	Over bool
}

// Channels has the channels of a reactor, to which all its methods belong.
type Channels struct {
	Config
	walks

	scheduled list.List[Channel] // to be pushed and reaped by Process
	active    list.List[Channel] // busy: to be polled
	counted   list.List[Channel] // completed zero-copy reads, which are not published yet
	reaped    [batchSize]*backend.IO
	batch     [batchSize]*backend.IO // of push
	room      backend.Turn
	behind    list.List[Channel] // for which there may have been no room
	ahead     bool               // one of them has moved up in this Poll

	armRound uint64 // of the channels that are armed, see Arm
	arming   bool   // some are, and Arm goes on after the next Poll
}

// NewChannels makes the channels of a reactor, of which there are none yet.
func NewChannels(cfg Config) *Channels {
	r := &Channels{Config: cfg, armRound: 1}
	r.Reactor.Turn = &r.room
	return r
}

// Poll takes back completed IOs from devices, and submits others. It returns the number of steps.
// It visits at most pollMost channels, and stops when budget is reached, which the last channel
// exceeds by less than 2*batchSize. The other channels come first in the next Poll, except one that
// moves up.
func (r *Channels) Poll(budget int) (n int) {
	most := pollMost
	r.room.Left = turnBytes
	if r.arming { // Poll would disarm them
		most, r.arming = 0, false
	} else {
		r.armRound++
		r.moveUp()
	}
	last := r.active.Last()
	for range most {
		ch := r.active.First()
		if ch == nil {
			break
		}
		n += ch.reap() // an IO that is back may release others, see pollOrSettle
		n += ch.push()
		r.active.Remove(&ch.active)
		if ch.polled() {
			r.active.Push(ch, &ch.active)
			if r.room.Left <= 0 && !ch.behind.Listed() {
				r.behind.Push(ch, &ch.behind)
			}
		} else {
			ch.settle()
		}
		if ch == last || n >= budget {
			break
		}
	}
	if n == 0 && r.room.Left < turnBytes {
		n = 1 // a part of an IO
	}
	return n
}

// moveUp makes a channel the first one for which there may have been no room, in every other Poll:
// the first one may use up all room, or the budget.
func (r *Channels) moveUp() {
	if r.ahead = !r.ahead; !r.ahead {
		return
	}
	if ch := r.behind.Pop(); ch != nil && ch.active.Listed() {
		r.active.Remove(&ch.active)
		r.active.PushFirst(ch, &ch.active)
	}
}

// Arm reports whether the reactor may sleep: devices wake it when they complete something, but an
// idle one that refused an IO must be offered it again. It arms at most pollMost channels: if
// others are left it returns false, and goes on unless something happens before.
func (r *Channels) Arm() bool {
	for range pollMost { // bound: channels in a turn
		ch := r.active.First()
		switch {
		case ch == nil, ch.armed == r.armRound:
			return true
		case ch.inflight == 0 && !ch.pending.Empty(),
			ch.inflight > 0 && !ch.dev.Arm():
			return false
		}
		ch.armed = r.armRound
		r.active.Remove(&ch.active)
		r.active.Push(ch, &ch.active)
	}
	r.arming = true
	return false
}

// schedule puts the channel on the list of channels that the next Process visits.
func (r *Channels) schedule(ch *Channel) {
	if !ch.scheduled.Listed() {
		r.scheduled.Push(ch, &ch.scheduled)
	}
}

// Scheduled reports whether Process has something to do.
func (r *Channels) Scheduled() bool { return !r.scheduled.Empty() }

// Process submits and takes back the IOs of scheduled channels.
func (r *Channels) Process() {
	r.armRound++ // a submission disarms
	for ch := r.scheduled.Pop(); ch != nil; ch = r.scheduled.Pop() {
		ch.push()
		ch.reap()
		ch.pollOrSettle()
	}
}

// Publish publishes the counters of zero-copy reads.
func (r *Channels) Publish() {
	for ch := r.counted.Pop(); ch != nil; ch = r.counted.Pop() {
		ch.stats.publish()
	}
}

// inPieces does many things, see list.Pieces.
func (r *Channels) inPieces(next func() int, done func()) {
	list.Pieces(r.Post, r.Steps, next, done)
}
