package reservation

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Store keeps the reservations of namespaces. A namespace of this target alone keeps them through a
// restart if they persist (Persist Through Power Loss). A shared namespace always does, see Shared.
type Store interface {
	// Load returns the stored state of a namespace, nil if there is none. It does not block.
	Load(nqn string, nsid uint32) *State
	// Save replaces the stored state of a namespace; nil removes it. If it returns no error, the
	// new state is durable. After a crash before that, the store has the old or the new state. One
	// goroutine at a time calls it for a namespace. It may block.
	Save(nqn string, nsid uint32, r *State) error
}

// Namespace has the reservations of one namespace, which outlive its removal until Forget: storage
// that is absent for a time takes no lock away. One goroutine at a time changes them:
//
//	state machine      the change is refused, or
//	store              made durable, if they persist
//	every reactor      adopts the new access, refuses the commands that wait for the device, and
//	                   reports when the device has nothing left of hosts without access
//	notifications, and the completion of the command
//
// Any goroutine may use it.
type Namespace struct {
	store  Store
	nqn    string
	nsid   uint32
	now    atomic.Pointer[State]
	access atomic.Pointer[Access]
	place  atomic.Int32
	dirty  bool // the store may have others; belongs to work

	// Mask is feature 82h.
	Mask atomic.Uint32

	mu sync.Mutex
	// users have the reservations: the namespace, and removed ones that reactors still use.
	users []User
	// changes have not begun. Hosts take turns: none waits for all changes of another one, whatever
	// the number of its Host Identifiers.
	changes list.Turns[subnet.Owner, Change]
	working bool
	share   func(map[Host]nvme.ReservationNotification) // of Share
}

// Place is the place of the current state.
type Place int32

const (
	// Here is this target alone.
	Here Place = iota
	// Shared is here, until another target takes it over from the store, which gets each new state,
	// whether it persists or not.
	Shared
	// Elsewhere may be another target. Reactors have the state before, and changes fail with an ANA
	// status.
	Elsewhere
)

// User is a namespace of the target that has the reservations. The goroutine that makes a change
// calls its methods, which do not block.
type User interface {
	// Adopt has every reactor with a channel adopt a, abort the commands of some hosts, and then
	// call c.Excluded, which it counts before with c.Exclude.
	Adopt(a *Access, aborted map[Host]bool, c *Change)
	// Notify passes the notification of each host, 0 for none, to its controllers.
	Notify(of func(Host) nvme.ReservationNotification)
}

// Change is one change.
type Change struct {
	Host  subnet.Owner // takes turns
	Apply func(*State) (Outcome, nvme.Status)
	Log   ratelog.Peer
	// Done is called once, by any goroutine.
	Done func(nvme.Status)

	restored *State // not nil: the change adopts it, without Apply

	r     *Namespace
	node  list.Node[Change] // in Namespace.changes
	ended atomic.Bool       // nobody waits for it any more
	left  atomic.Int64      // reactors that still have to exclude hosts, and commit
}

// New returns the reservations of a namespace as a store has them; nil: none persist.
func New(store Store, nqn string, nsid uint32) *Namespace {
	r := &Namespace{store: store, nqn: nqn, nsid: nsid}
	now := &State{}
	if store != nil {
		now = cmp.Or(store.Load(nqn, nsid), now)
	}
	r.now.Store(now)
	r.access.Store(now.Access())
	return r
}

// Forget ends the reservations of a namespace that was removed and does not come back, also in the
// store. It blocks, and reports whether a reservation has ended.
func (r *Namespace) Forget(log ratelog.Peer) (reserved bool) {
	reserved = r.now.Load().Type != 0
	done := make(chan struct{})
	r.Submit(&Change{
		Log: log, Done: func(st nvme.Status) {
			reserved = reserved && st.OK()
			close(done)
		},
		Apply: func(*State) (Outcome, nvme.Status) {
			return Outcome{Next: &State{}}, nvme.Success
		},
	})
	<-done
	return reserved
}

// Move notes the place of the state from now on.
func (r *Namespace) Move(to Place) { r.place.Store(int32(to)) }

// Place returns the place.
func (r *Namespace) Place() Place { return Place(r.place.Load()) }

// Elsewhere reports whether another target may have changed the reservations.
func (r *Namespace) Elsewhere() bool { return r.Place() == Elsewhere }

// Restore adopts the state that the store has, from another target that does not use it any more.
// It returns when earlier changes have ended and the reactors have adopted the access.
func (r *Namespace) Restore(s *State) {
	done := make(chan struct{})
	r.Submit(&Change{restored: s, Done: func(nvme.Status) { close(done) }})
	<-done
}

// Attach makes u a user, before anything uses it.
func (r *Namespace) Attach(u User) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users = append(r.users, u)
}

// Detach is called when nothing uses u any more.
func (r *Namespace) Detach(u User) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users = slices.DeleteFunc(r.users, func(o User) bool { return o == u })
}

// State is the current state.
func (r *Namespace) State() *State { return r.now.Load() }

// Access returns the access that a reactor begins with: nil without a reservation.
func (r *Namespace) Access() *Access { return r.access.Load() }

// Submit begins a change, after the earlier changes of its host. It does not block.
func (r *Namespace) Submit(c *Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.r = r
	r.changes.Push(c.Host, c, &c.node)
	if !r.working {
		r.working = true
		go r.work()
	}
}

// End notes that nobody waits for a change any more: it is dropped if it has not begun.
func (c *Change) End() {
	c.ended.Store(true)
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.node.Listed() {
		r.changes.Remove(c.Host, &c.node)
	}
}

// Ended reports whether End was called.
func (c *Change) Ended() bool { return c.ended.Load() }

// next takes the next change out of the queue, nil if there is none.
func (r *Namespace) next() *Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.changes.Pop()
	r.working = c != nil
	return c
}

// work makes changes until there are no more.
func (r *Namespace) work() {
	for c := r.next(); c != nil; c = r.next() {
		r.change(c)
	}
}

// change makes one change.
func (r *Namespace) change(c *Change) {
	if c.restored != nil {
		r.dirty = false
		r.commit(c, &Outcome{Next: c.restored})
		return
	}
	if r.Elsewhere() {
		c.Done(nvme.ANAInaccessible)
		return
	}
	before := r.now.Load()
	o, st := c.Apply(before)
	if !st.OK() {
		c.Done(st)
		return
	}
	switch err := r.save(before, o.Next); {
	case err == nil:
		r.commit(c, &o)
	case r.Elsewhere():
		c.Done(nvme.ANAInaccessible)
	default:
		c.Log.Report(event.ReservationUnstored, "subsystem", r.nqn, "nsid", r.nsid, "err", err)
		c.Done(nvme.InternalError)
	}
}

// save makes a change durable if reservations persist before it or after it, or are shared. If that
// fails, the store may have either state. The state before the change still holds: it is stored
// again, now or with the next change.
func (r *Namespace) save(before, next *State) error {
	all := r.Place() != Here
	if r.store == nil ||
		!r.dirty && (!all && !before.PTPL && !next.PTPL || next.equal(before)) {
		return nil
	}
	put := func(kept *State) error {
		if !all && !kept.PTPL {
			kept = nil
		}
		return r.store.Save(r.nqn, r.nsid, kept)
	}
	err := put(next)
	r.dirty = err != nil && put(before) != nil
	return err
}

// commit makes a durable change visible. c.Done is called when the devices have nothing of the
// hosts that it excludes.
func (r *Namespace) commit(c *Change, o *Outcome) {
	a := o.Next.Access()
	fenced := o.acquired && a != nil || len(o.aborted) > 0 || !a.equal(r.access.Load())
	r.access.Store(a)
	c.Exclude()
	r.mu.Lock()
	r.now.Store(o.Next)
	for _, u := range r.users {
		if fenced { // reactors that join later begin with r.access
			u.Adopt(a, o.aborted, c)
		}
	}
	share := r.share
	r.mu.Unlock()
	maps.DeleteFunc(o.notifications, func(_ Host, typ nvme.ReservationNotification) bool {
		return r.Mask.Load()&typ.Mask() != 0
	})
	if len(o.notifications) > 0 {
		r.Notify(func(h Host) nvme.ReservationNotification { return o.notifications[h] })
		if share != nil {
			share(o.notifications)
		}
	}
	c.Excluded()
}

// Share sets a function that gets the notifications of changes here, for hosts of other targets. It
// does not block.
func (r *Namespace) Share(with func(map[Host]nvme.ReservationNotification)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.share = with
}

// Notify passes the notification of each host, 0 for none, to its controllers here, unless hosts
// have masked it.
func (r *Namespace) Notify(of func(Host) nvme.ReservationNotification) {
	r.mu.Lock()
	var last User
	if n := len(r.users); n > 0 {
		last = r.users[n-1]
	}
	r.mu.Unlock()
	if last != nil {
		last.Notify(func(h Host) nvme.ReservationNotification {
			if typ := of(h); r.Mask.Load()&typ.Mask() == 0 {
				return typ
			}
			return 0
		})
	}
}

// Exclude counts a reactor that will call Excluded, when its device has nothing of the hosts that
// the change excludes.
func (c *Change) Exclude() { c.left.Add(1) }

// Excluded is called once for each Exclude, by any goroutine.
func (c *Change) Excluded() {
	if c.left.Add(-1) == 0 {
		c.Done(nvme.Success)
	}
}
