package target

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// ReservationStore keeps reservations through a restart (Persist Through Power Loss).
type ReservationStore interface {
	// Load returns what is kept of a namespace, nil if there is nothing. It does not block.
	Load(nqn string, nsid uint32) *Reservations
	// Save replaces what is kept of a namespace; nil: nothing. If it returns nil, what it was given
	// is durable, after a crash before that the old or the new. It is called by one goroutine at
	// a time for a namespace, and may block.
	Save(nqn string, nsid uint32, r *Reservations) error
}

// reservationKey names a namespace.
type reservationKey struct {
	nqn  string
	nsid uint32
}

// reservations are the reservations of one namespace, which outlive its removal until
// ForgetReservations: storage that is absent for a time takes no lock away. One goroutine at a time
// changes them:
//
//	state machine      the change is refused, or
//	store              made durable, if they persist
//	every reactor      adopts who has access from now on, refuses what waits for the device, and
//	                   says when the device has nothing left of hosts that have none
//	notifications, and the completion of the command
type reservations struct {
	t    *Target
	key  reservationKey
	now  atomic.Pointer[Reservations]
	mask atomic.Uint32 // FID 82h
	// access is what channels begin with: nil without a reservation.
	access atomic.Pointer[access]
	dirty  bool // the store may have others; belongs to work

	mu sync.Mutex
	// served is the namespace that has them, and those that were removed as long as reactors work
	// for them.
	served  []*namespace
	turns   list.List[hostChanges]  // the next one first
	hosts   map[string]*hostChanges // by NQN
	working bool
}

// hostChanges are the changes of one host NQN that have not begun. Hosts take turns: none waits
// for all that another one asks for, with however many Host Identifiers.
type hostChanges struct {
	host string // NQN
	list list.List[reservationChange]
	node list.Node[hostChanges]
}

// reservationChange is one change.
type reservationChange struct {
	r     *reservations
	host  string
	node  list.Node[reservationChange] // in hostChanges
	apply func(*Reservations) (outcome, nvme.Status)
	abort bool // commands of hosts that are preempted
	log   ratelog.Peer
	// done is called once, by any goroutine.
	done func(nvme.Status)
	// ended: nobody waits for it any more.
	ended atomic.Bool
}

// reservationsOf returns the reservations of a namespace. The caller holds t.mu.
func (t *Target) reservationsOf(key reservationKey) *reservations {
	r := t.reservations[key]
	if r == nil {
		r = &reservations{t: t, key: key, hosts: map[string]*hostChanges{}}
		now := &Reservations{}
		if t.store != nil {
			now = cmp.Or(t.store.Load(key.nqn, key.nsid), now)
		}
		r.now.Store(now)
		r.access.Store(now.access())
		t.reservations[key] = r
	}
	return r
}

// ForgetReservations forgets the reservations of a namespace that was removed and does not come
// back, also in the store.
func (t *Target) ForgetReservations(nqn string, nsid uint32) {
	t.mu.Lock()
	key := reservationKey{nqn, nsid}
	r := t.reservationsOf(key)
	delete(t.reservations, key)
	t.mu.Unlock()
	if now := r.now.Load(); now.Type != 0 {
		t.log.Warn("a reservation has ended with its namespace", "subsystem", nqn, "nsid", nsid)
	}
	done := make(chan struct{})
	r.submit(&reservationChange{
		r: r, log: t.hostLog.Peer(netip.AddrPort{}), done: func(nvme.Status) { close(done) },
		apply: func(*Reservations) (outcome, nvme.Status) {
			return outcome{next: &Reservations{}}, nvme.Success
		},
	})
	<-done
}

// reservationCap is RESCAP.
func (t *Target) reservationCap() nvme.ReservationCap {
	c := nvme.ReservationCapTypes | nvme.ReservationCapIEKEY
	if t.store != nil {
		c |= nvme.ReservationCapPTPL
	}
	return c
}

// attach makes ns a namespace that has these reservations, before anything uses it.
func (r *reservations) attach(ns *namespace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ns.reservations = r
	r.served = append(r.served, ns)
}

// detach is called when nothing uses ns any more.
func (r *reservations) detach(ns *namespace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served = slices.DeleteFunc(r.served, func(o *namespace) bool { return o == ns })
}

// submit begins a change, after those of its host before it. It does not block.
func (r *reservations) submit(c *reservationChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.hosts[c.host]
	if q == nil {
		q = &hostChanges{host: c.host}
		r.hosts[c.host] = q
		r.turns.Push(q, &q.node)
	}
	q.list.Push(c, &c.node)
	if !r.working {
		r.working = true
		go r.work()
	}
}

// end says that nobody waits for a change any more: it is dropped if it has not begun.
func (c *reservationChange) end() {
	c.ended.Store(true)
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.node.Listed() {
		r.remove(c)
	}
}

// remove takes a change out of the queue. The caller holds r.mu.
func (r *reservations) remove(c *reservationChange) {
	q := r.hosts[c.host]
	q.list.Remove(&c.node)
	if q.list.Empty() {
		r.turns.Remove(&q.node)
		delete(r.hosts, q.host)
	}
}

// next takes the next change out of the queue, nil if there is none.
func (r *reservations) next() *reservationChange {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.turns.First()
	if q == nil {
		r.working = false
		return nil
	}
	c := q.list.First()
	r.turns.Remove(&q.node) // the next turn is that of another host
	r.turns.Push(q, &q.node)
	r.remove(c)
	return c
}

// work makes changes until there are no more.
func (r *reservations) work() {
	for c := r.next(); c != nil; c = r.next() {
		r.change(c)
	}
}

// change makes one change.
func (r *reservations) change(c *reservationChange) {
	before := r.now.Load()
	o, st := c.apply(before)
	if !st.OK() {
		c.done(st)
		return
	}
	if err := r.save(before, o.next); err != nil {
		c.log.Warn("reservations cannot be stored: the command of the host fails",
			"subsystem", r.key.nqn, "nsid", r.key.nsid, "err", err)
		c.done(nvme.InternalError)
		return
	}
	r.commit(c, &o)
}

// save makes a change durable if reservations persist before it or after it. If that fails, the
// store may have either: what holds, the one before, is stored again, now or with the next change.
func (r *reservations) save(before, next *Reservations) error {
	store := r.t.store
	if store == nil || !r.dirty && (!before.PTPL && !next.PTPL || next.equal(before)) {
		return nil
	}
	put := func(kept *Reservations) error {
		if !kept.PTPL {
			kept = nil
		}
		return store.Save(r.key.nqn, r.key.nsid, kept)
	}
	err := put(next)
	r.dirty = err != nil && put(before) != nil
	return err
}

// commit makes a change that is durable visible, and calls c.done when the devices have nothing of
// the hosts that it excludes.
func (r *reservations) commit(c *reservationChange, o *outcome) {
	var left atomic.Int64
	left.Store(1)
	done := func() {
		if left.Add(-1) == 0 {
			c.done(nvme.Success)
		}
	}
	aborted := o.preempted
	if !c.abort {
		aborted = nil
	}
	a := o.next.access()
	fenced := o.acquired && a != nil || len(aborted) > 0 || !a.equal(r.access.Load())
	r.access.Store(a)
	r.mu.Lock()
	r.now.Store(o.next)
	var last *subsystem
	for _, ns := range r.served {
		last = ns.sub
		if !fenced {
			continue
		}
		for _, h := range ns.users.list() { // those that join later begin with r.access
			left.Add(1)
			h.post(func() { h.setAccess(ns, a, &fence{aborted: aborted, change: c, done: done}) })
		}
	}
	r.mu.Unlock()
	if last != nil {
		r.notify(last, o.notifications)
	}
	done()
}

// notify passes notifications to the controllers of their hosts.
func (r *reservations) notify(sub *subsystem, all []notification) {
	if len(all) == 0 {
		return
	}
	to := make(map[HostIdentity]nvme.ReservationNotification, len(all))
	for _, n := range all {
		if r.mask.Load()&n.typ.Mask() == 0 {
			to[n.host] = n.typ
		}
	}
	sub.each(func(c *controller) {
		if typ := to[c.identity.Value()]; typ != 0 && c.namespace(r.key.nsid) != nil {
			c.h.post(func() { c.notifyReservation(typ, r.key.nsid) })
		}
	})
}
