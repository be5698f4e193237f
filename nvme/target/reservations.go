package target

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

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

	mu sync.Mutex
	// served is the namespace that has them, and those that were removed as long as reactors work
	// for them.
	served  []*namespace
	queue   []*reservationChange
	working bool
}

// reservationChange is one change.
type reservationChange struct {
	r     *reservations
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
		r = &reservations{t: t, key: key}
		r.now.Store(&Reservations{})
		if t.store != nil {
			if kept := t.store.Load(key.nqn, key.nsid); kept != nil {
				r.now.Store(kept)
			}
		}
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
	ns.users.setAccess(r.now.Load().access())
	r.served = append(r.served, ns)
}

// detach is called when nothing uses ns any more.
func (r *reservations) detach(ns *namespace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served = slices.DeleteFunc(r.served, func(o *namespace) bool { return o == ns })
}

// submit begins a change, after those before it. It does not block.
func (r *reservations) submit(c *reservationChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, c)
	if !r.working {
		r.working = true
		go r.work()
	}
}

// end says that nobody waits for a change any more: it is dropped if it has not begun.
func (c *reservationChange) end() {
	c.ended.Store(true)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.queue = slices.DeleteFunc(c.r.queue, func(o *reservationChange) bool { return o == c })
}

// work makes changes until there are no more.
func (r *reservations) work() {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.working = false
			r.mu.Unlock()
			return
		}
		c := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		r.change(c)
	}
}

// change makes one change.
func (r *reservations) change(c *reservationChange) {
	before, store := r.now.Load(), r.t.store
	o, st := c.apply(before)
	if !st.OK() {
		c.done(st)
		return
	}
	if store != nil && (before.PTPL || o.next.PTPL) && !o.next.equal(before) {
		kept := o.next
		if !kept.PTPL {
			kept = nil
		}
		if err := store.Save(r.key.nqn, r.key.nsid, kept); err != nil {
			c.log.Warn("reservations cannot be stored: the command of the host fails",
				"subsystem", r.key.nqn, "nsid", r.key.nsid, "err", err)
			c.done(nvme.InternalError)
			return
		}
	}
	r.commit(c, &o, before)
}

// commit makes a change that is durable visible, and calls c.done when the devices have nothing of
// the hosts that it excludes.
func (r *reservations) commit(c *reservationChange, o *outcome, before *Reservations) {
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
	r.mu.Lock()
	r.now.Store(o.next)
	var last *subsystem
	for _, ns := range r.served {
		last = ns.sub
		if a.equal(before.access()) && len(aborted) == 0 {
			continue
		}
		for _, h := range ns.users.setAccess(a) {
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
func (r *reservations) notify(sub *subsystem, list []notification) {
	if len(list) == 0 {
		return
	}
	to := make(map[[16]byte]nvme.ReservationNotification, len(list))
	for _, n := range list {
		if r.mask.Load()&n.typ.Mask() == 0 {
			to[n.host] = n.typ
		}
	}
	sub.each(func(c *controller) {
		if typ := to[c.hostID]; typ != 0 && c.namespace(r.key.nsid) != nil {
			c.h.post(func() { c.notifyReservation(typ, r.key.nsid) })
		}
	})
}
