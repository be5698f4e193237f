package target

import (
	"fmt"
	"maps"
	"slices"
	"unique"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// MaxRegistrants is how many hosts may be registered with a namespace, and registrantsOfNQN how
// many of them may have the same NQN: one that makes up Host Identifiers takes no place of others.
// registrantsOfUnknown is how many may have NQNs that the configuration does not have: a peer that
// makes up NQNs, where any host is allowed, must not take the places of configured hosts.
const (
	MaxRegistrants       = 256
	registrantsOfNQN     = 16
	registrantsOfUnknown = 128
)

// HostIdentity is what reservations know a host by: both of its names. Who proves with a key that
// it has an NQN has nothing of others, whatever Host Identifier it sends.
type HostIdentity struct {
	HostID [16]byte
	NQN    string
}

// Registrant is a host that is registered with a namespace.
type Registrant struct {
	HostIdentity
	Key uint64
}

// Reservations are the registrants and the reservation of a namespace (Base section 8.1.22). They
// are immutable.
type Reservations struct {
	Generation uint32
	// PTPL: they persist through a restart.
	PTPL bool
	// Type is 0 if there is no reservation.
	Type nvme.ReservationType
	// Holder is the host that holds it; zero if all registrants do, or if there is none.
	Holder HostIdentity
	// Registrants are in the order in which they have registered.
	Registrants []Registrant
}

// Validate says what is wrong with reservations that were kept somewhere.
func (r *Reservations) Validate() error {
	if len(r.Registrants) > MaxRegistrants {
		return fmt.Errorf("%d registrants: at most %d are possible", len(r.Registrants),
			MaxRegistrants)
	}
	for i, g := range r.Registrants {
		if g.Key == 0 || g.HostID == [16]byte{} || r.find(g.HostIdentity) != i {
			return fmt.Errorf("registrant %x with key %#x", g.HostID, g.Key)
		}
	}
	single := r.Type != 0 && !r.Type.AllRegistrants()
	if r.Type > nvme.ExclusiveAccessAllRegistrants || single != (r.Holder != HostIdentity{}) ||
		single && r.find(r.Holder) < 0 || r.Type != 0 && len(r.Registrants) == 0 {
		return fmt.Errorf("%v with the holder %x", r.Type, r.Holder)
	}
	return nil
}

func (r *Reservations) equal(o *Reservations) bool {
	return r.Generation == o.Generation && r.PTPL == o.PTPL && r.Type == o.Type &&
		r.Holder == o.Holder && slices.Equal(r.Registrants, o.Registrants)
}

// find returns the index of a registrant, or -1.
func (r *Reservations) find(host HostIdentity) int {
	return slices.IndexFunc(r.Registrants, func(g Registrant) bool {
		return g.HostIdentity == host
	})
}

// full returns why there is no place for another host with this NQN, nil if there is one.
func (r *Reservations) full(nqn string, known func(nqn string) bool) error {
	same, unknown := 0, 0
	for _, g := range r.Registrants {
		if g.NQN == nqn {
			same++
		}
		if !known(g.NQN) {
			unknown++
		}
	}
	switch {
	case len(r.Registrants) >= MaxRegistrants:
		return fmt.Errorf("%d hosts are registered, the limit", len(r.Registrants))
	case same >= registrantsOfNQN:
		return fmt.Errorf("%d hosts with this NQN are registered, the limit", same)
	case unknown >= registrantsOfUnknown && !known(nqn):
		return fmt.Errorf("%d hosts that are not in the configuration are registered, the limit",
			unknown)
	}
	return nil
}

// holds reports whether a host holds the reservation.
func (r *Reservations) holds(host HostIdentity) bool {
	return r.Type.AllRegistrants() && r.find(host) >= 0 || r.Type != 0 && r.Holder == host
}

// reservationRequest is a reservation command.
type reservationRequest struct {
	op      nvme.Opcode
	host    HostIdentity
	action  nvme.ReservationAction
	iekey   bool
	typ     nvme.ReservationType
	cptpl   nvme.ChangePTPL
	current uint64 // CRKEY
	other   uint64 // NRKEY or PRKEY
	// known reports whether the configuration has an NQN. Any goroutine may call it.
	known func(nqn string) bool
	full  error // why there was no place for another registrant
}

// outcome is what a change of reservations leads to.
type outcome struct {
	next          *Reservations
	notifications []notification
	// preempted are the hosts whose commands Preempt and Abort aborts.
	preempted map[HostIdentity]bool
	// acquired: the command promises that devices have nothing of hosts without access, also if
	// these had none before. A host may repeat a command that has failed because they had.
	acquired bool
}

// notification is a reservation notification for a host.
type notification struct {
	host HostIdentity
	typ  nvme.ReservationNotification
}

// apply is the state machine of Base section 8.1.22: r does not change.
func (r *Reservations) apply(q *reservationRequest) (outcome, nvme.Status) {
	next := *r
	next.Registrants = slices.Clone(r.Registrants)
	o := outcome{next: &next}
	var st nvme.Status
	switch q.op {
	case nvme.IOReservationRegister:
		st = o.register(q)
	case nvme.IOReservationAcquire:
		st = o.acquire(q)
	case nvme.IOReservationRelease:
		st = o.release(q)
	}
	if !st.OK() {
		return outcome{}, st
	}
	return o, nvme.Success
}

// register registers, unregisters or replaces a key (Base sections 7.6, 8.1.22.3 and 8.1.22.4).
// With IEKEY the absence of a current key is no error.
func (o *outcome) register(q *reservationRequest) nvme.Status {
	r := o.next
	i := r.find(q.host)
	registered := i >= 0
	switch {
	case q.action != nvme.ReservationUnregister && q.other == 0:
		return invalidField // a registrant without a key could not be told from others
	case q.action == nvme.ReservationRegister && registered && r.Registrants[i].Key != q.other,
		q.action != nvme.ReservationRegister && !q.iekey && !r.hasKey(q.host, q.current):
		return reservationConflict
	case q.action == nvme.ReservationUnregister:
		before := r.Type
		r.remove(func(g Registrant) bool { return g.HostIdentity == q.host })
		if r.Type != before && !before.SingleHolder() {
			o.notifyOthers(q.host, nvme.ReservationReleased)
		}
	case registered:
		r.Registrants[i].Key = q.other
	default:
		if q.full = r.full(q.host.NQN, q.known); q.full != nil {
			return tooManyRegistrants
		}
		r.Registrants = append(r.Registrants, Registrant{q.host, q.other})
	}
	if q.cptpl != nvme.KeepPTPL {
		r.PTPL = q.cptpl == nvme.SetPTPL
	}
	r.Generation++
	return nvme.Success
}

// hasKey reports whether a host is registered with this key.
func (r *Reservations) hasKey(host HostIdentity, key uint64) bool {
	i := r.find(host)
	return i >= 0 && r.Registrants[i].Key == key
}

// remove unregisters hosts and returns them. The reservation ends with its only holder, or with the
// last registrant.
func (r *Reservations) remove(which func(Registrant) bool) (removed []HostIdentity) {
	r.Registrants = slices.DeleteFunc(r.Registrants, func(g Registrant) bool {
		if !which(g) {
			return false
		}
		removed = append(removed, g.HostIdentity)
		return true
	})
	if len(r.Registrants) == 0 || !r.Type.AllRegistrants() && r.find(r.Holder) < 0 {
		r.hold(0, HostIdentity{})
	}
	return removed
}

// hold makes host the holder of a reservation; type 0 releases it.
func (r *Reservations) hold(typ nvme.ReservationType, host HostIdentity) {
	if typ == 0 || typ.AllRegistrants() {
		host = HostIdentity{}
	}
	r.Type, r.Holder = typ, host
}

func (o *outcome) notify(host HostIdentity, typ nvme.ReservationNotification) {
	o.notifications = append(o.notifications, notification{host, typ})
}

// notifyOthers notifies all registrants but one host.
func (o *outcome) notifyOthers(host HostIdentity, typ nvme.ReservationNotification) {
	for _, g := range o.next.Registrants {
		if g.HostIdentity != host {
			o.notify(g.HostIdentity, typ)
		}
	}
}

// acquire acquires a reservation or preempts (Base sections 7.5, 8.1.22.5 and 8.1.22.7).
func (o *outcome) acquire(q *reservationRequest) nvme.Status {
	r := o.next
	o.acquired = true
	switch {
	case !r.hasKey(q.host, q.current):
		return reservationConflict
	case q.action != nvme.ReservationAcquire:
		return o.preempt(q)
	case r.Type == 0:
		r.hold(q.typ, q.host)
	case r.Type != q.typ || !r.holds(q.host):
		return reservationConflict
	}
	return nvme.Success
}

// preempt unregisters hosts by their key and takes the reservation over if its holder is meant:
// PRKEY is the holder's, or 0 if all registrants hold it. A key that nobody has is a conflict if
// all registrants hold it, and if another host does, which has come first. The holder may repeat
// its preempt.
func (o *outcome) preempt(q *reservationRequest) nvme.Status {
	r := o.next
	before, take := r.Type, false
	switch {
	case before.AllRegistrants():
		take = q.other == 0
	case before != 0:
		if take = r.hasKey(r.Holder, q.other); !take && q.other == 0 {
			return invalidField
		}
	}
	all := take && q.other == 0
	removed := r.remove(func(g Registrant) bool {
		return (all || g.Key == q.other) && (!take || g.HostIdentity != q.host)
	})
	switch {
	case take:
		r.hold(q.typ, q.host)
	case len(removed) == 0 && before != 0 && r.Holder != q.host:
		return reservationConflict
	}
	o.preempted = map[HostIdentity]bool{}
	for _, host := range removed {
		if host != q.host {
			o.notify(host, nvme.RegistrationPreempted)
			o.preempted[host] = true
		}
	}
	if r.Type != before {
		o.notifyOthers(q.host, nvme.ReservationReleased)
	}
	r.Generation++
	return nvme.Success
}

// release releases the reservation, or clears everything (Base sections 7.7, 8.1.22.6 and
// 8.1.22.8). It is no error if there is none, or if another host holds it.
func (o *outcome) release(q *reservationRequest) nvme.Status {
	r := o.next
	before := r.Type
	switch {
	case !r.hasKey(q.host, q.current):
		return reservationConflict
	case q.action == nvme.ReservationClear:
		o.notifyOthers(q.host, nvme.ReservationPreempted)
		r.remove(func(Registrant) bool { return true })
		r.Generation++
	case before == 0:
	case q.typ != before:
		return invalidField
	case r.holds(q.host):
		r.hold(0, q.host)
		if !before.SingleHolder() {
			o.notifyOthers(q.host, nvme.ReservationReleased)
		}
	}
	return nvme.Success
}

// access is who may use a namespace that is reserved. It is immutable; nil: all hosts.
type access struct {
	typ    nvme.ReservationType
	holder hostHandle
	// registrants is empty if they have no more rights than others.
	registrants map[hostHandle]struct{}
}

// hostHandle stands for a HostIdentity where it is compared for each command.
type hostHandle = unique.Handle[HostIdentity]

func (r *Reservations) access() *access {
	if r.Type == 0 {
		return nil
	}
	a := &access{
		typ: r.Type, holder: unique.Make(r.Holder), registrants: map[hostHandle]struct{}{},
	}
	if !r.Type.SingleHolder() {
		for _, g := range r.Registrants {
			a.registrants[unique.Make(g.HostIdentity)] = struct{}{}
		}
	}
	return a
}

// permits is the table of Base section 8.1.22.1: it reports whether a host may send a command of a
// group.
func (a *access) permits(host hostHandle, g commandGroup) bool {
	if g == groupNone || g == groupRead && !a.typ.ExcludesReads() || host == a.holder {
		return true
	}
	_, registered := a.registrants[host]
	return registered
}

func (a *access) equal(o *access) bool {
	if a == nil || o == nil {
		return a == o
	}
	return a.typ == o.typ && a.holder == o.holder && maps.Equal(a.registrants, o.registrants)
}
