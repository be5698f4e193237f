package dispatch

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// fencing is the part of a channel that keeps hosts from its namespace.
type fencing struct {
	fences   []*fence                 // whose rounds have begun; mostly nil
	rounds   map[subnet.Owner]*Round  // that have not begun, and other fences of a host may share
	aborting map[reservation.Host]int // hosts that rounds of fences abort, and how many of them do
	orphans  int                      // IOs in the device, of commands that were given up
}

// Reservations on the I/O path. A reactor's channel has a copy of the access of hosts to the
// namespace (Channel.Access). It is compared twice:
//
//	prepare  before data moves: Reservation Conflict
//	check    before the device gets the IO, which may be much later: the IO is aborted, since a
//	         command allowed before must not end with that status (Base section 8.1.22)
//
// When the access changes, a fence waits on each reactor for IOs that the device has already.

// ErrPreempted is the error of an IO of a preempted host. Nothing of the IO has reached the device,
// or the device has canceled it.
var ErrPreempted = errors.New("the host was preempted")

// fence waits on one reactor until its device has no IO of hosts that lost access.
type fence struct {
	await
	access *reservation.Access // as of its change; that of the channel may be newer
	// aborted are the hosts to abort. Their commands are aborted even if they still have access.
	aborted map[reservation.Host]bool
	change  *reservation.Change
	drained func()
}

// Adopt has the channels adopt an access, as reservation.User describes.
func (ns *Namespace) Adopt(a *reservation.Access, aborted map[reservation.Host]bool,
	c *reservation.Change,
) {
	c.Exclude()
	ns.barrier(nil, func(*fresh) {}, func(ch *Channel, drained func()) {
		ch.setAccess(a, &fence{aborted: aborted, change: c, drained: drained})
	}, c.Excluded)
}

// permits reports whether an IO of a queue, which may be nil, may reach the device.
func permits(a *reservation.Access, io *backend.IO, q *Queue) bool {
	if a == nil || q == nil || q.Admin {
		return true
	}
	g := reservation.GroupWrite
	if io.Op == backend.OpRead {
		g = reservation.GroupRead
	}
	return a.Permits(q.Host, g)
}

// sharedFences is how many fences share a round: it compares each IO with all of them.
const sharedFences = 8

// Round is a visit of all commands of a reactor for fences of a channel, in pieces; see Walk.
type Round struct {
	ch     *Channel
	fences []*fence // of one host: the first counts IOs and waits for the round, the others for it
	begun  bool
}

// setAccess adopts the access of hosts to the namespace. The fence ends when the device has no IOs
// of hosts without access. Until the round ends, no IO of hosts that are aborted reaches the
// device.
func (ch *Channel) setAccess(a *reservation.Access, f *fence) {
	ch.Access = a
	if a == nil && len(f.aborted) == 0 {
		f.drained() // nobody is excluded
		return
	}
	f.access, f.done = a, ch.endFences
	for id := range f.aborted { // bound: registrants
		ch.aborting[id]++
	}
	host := f.change.Host
	if r := ch.rounds[host]; r != nil && len(r.fences) < sharedFences {
		r.fences = append(r.fences, f)
		return
	}
	f.left++
	r := &Round{ch: ch, fences: []*fence{f}}
	if ch.rounds == nil {
		ch.rounds = map[subnet.Owner]*Round{}
	}
	ch.rounds[host] = r
	next := ch.r.Exclude(ch, r)
	ch.r.startRound(host, &Walk{Done: r.end, Next: func() int {
		r.begin()
		return next()
	}})
}

// begin notes that commands are visited from now on. Only then do fences of other hosts wait for
// the fences of the round.
func (r *Round) begin() {
	if r.begun {
		return
	}
	r.begun = true
	ch, host := r.ch, r.fences[0].change.Host
	if ch.rounds[host] == r {
		delete(ch.rounds, host)
	}
	for _, f := range r.fences {
		ch.addFence(f)
	}
}

// end notes that all commands have been visited.
func (r *Round) end() {
	ch := r.ch
	for _, f := range r.fences {
		for id := range f.aborted { // bound: registrants
			if ch.aborting[id]--; ch.aborting[id] == 0 {
				delete(ch.aborting, id)
			}
		}
	}
	r.fences[0].left--
	ch.endFences()
}

// aborts reports whether the host of an I/O queue is being aborted.
func (ch *Channel) aborts(q *Queue) bool {
	return !q.Admin && len(ch.aborting) > 0 && ch.aborting[q.Host.Value()] > 0
}

// Aborts reports whether the commands of a queue that use the channel are aborted.
func (r *Round) Aborts(q *Queue) bool { return r.ch.aborts(q) }

// Skips reports whether the host of a queue has access by all fences, and is not aborted.
func (r *Round) Skips(q *Queue) bool {
	return !r.ch.aborts(q) && !slices.ContainsFunc(r.fences, func(f *fence) bool {
		return f.access != nil && !f.access.Permits(q.Host, reservation.GroupWrite)
	})
}

// excludes reports whether a fence excludes the host of an IO, which may be back by now.
func (r *Round) excludes(io *backend.IO) bool {
	q := r.ch.r.Queue(io)
	return slices.ContainsFunc(r.fences, func(f *fence) bool { return !permits(f.access, io, q) })
}

// Exclude completes an IO of the channel that the device does not have, or has the first fence wait
// for it, if its host is aborted or has no access. It reports whether it has done either.
func (r *Round) Exclude(io *backend.IO, aborted bool) bool {
	ch := r.ch
	switch {
	case !aborted && !r.excludes(io):
		return false
	case ch.Abort(io, ErrPreempted):
	case ch.Has(io):
		x := ch.awaits(io, new(awaited))
		if x.by[byFence] == nil { // otherwise a fence waits for it that ends before
			x.await(byFence, &r.fences[0].await)
		}
		if aborted && !x.aborted {
			x.aborted = true
			ch.Cancel(io)
		}
	default:
		return false
	}
	return true
}

// addFence makes f the last fence. Before it needs more memory, it removes fences that no command
// waits for. Fences that wait for IOs stay; there are no more of them than IOs.
func (ch *Channel) addFence(f *fence) {
	if len(ch.fences) == cap(ch.fences) {
		ch.fences = slices.DeleteFunc(ch.fences, func(o *fence) bool {
			return o.left == 0 && o.change.Ended()
		})
	}
	ch.fences = append(ch.fences, f)
}

// endFences ends the fences that wait for nothing any more, in the order of their rounds: later
// fences wait for the IOs of earlier ones as well. All fences wait for IOs that were given up, of
// any host.
func (ch *Channel) endFences() {
	for len(ch.fences) > 0 && ch.fences[0].left == 0 && ch.orphans == 0 {
		ch.fences[0].drained()
		ch.fences = ch.fences[1:]
	}
	if len(ch.fences) == 0 {
		ch.fences = nil
	}
}

// Orphaned notes that the device has an IO of a command that is given up. No lock waits for it: the
// namespace is not ready until it is back.
func (ch *Channel) Orphaned(io *backend.IO) {
	if x := waitsFor(io); x != nil && x.by[byLock] != nil {
		a := x.by[byLock]
		x.by[byLock] = nil
		if a.less() {
			a.done()
		}
	}
	ch.orphans++
}

// OrphanBack notes that the device has given such an IO back.
func (ch *Channel) OrphanBack() {
	ch.orphans--
	ch.endFences()
}
