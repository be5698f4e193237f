package reservation

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// MaxRegistrants is how many hosts may be registered with a namespace, and registrantsOfNQN how
// many of them may have the same NQN: one that makes up Host Identifiers takes no place of others.
// registrantsOfUnknown is how many may have NQNs that the configuration does not have: a peer that
// makes up NQNs, where any host is allowed, must not take the places of configured hosts. Networks
// have shares of these.
const (
	MaxRegistrants       = 256
	registrantsOfNQN     = 16
	registrantsOfUnknown = 128
)

// The statuses of refusals.
const (
	conflict = nvme.ReservationConflict | nvme.DNR
	invalid  = nvme.InvalidField | nvme.DNR
	// tooMany registrants: there is no status for it.
	tooMany = nvme.InternalError | nvme.DNR
)

// Host identifies a host to reservations, by both of its names. A host that proves its NQN with a
// key shares nothing with other hosts, even if it sends their Host Identifier.
type Host struct {
	HostID [16]byte
	NQN    string
}

// Registrant is a host that is registered with a namespace.
type Registrant struct {
	Host
	Key uint64
	// Network is subnet.Of the address that it has registered from. It is not kept through a
	// restart: afterwards the registrant counts for no network.
	Network netip.Addr
}

// State is the registrants and the reservation (Base section 8.1.22). It is immutable.
type State struct {
	Generation uint32
	// PTPL: it persists through a restart.
	PTPL bool
	// Type is 0 if there is no reservation.
	Type nvme.ReservationType
	// Holder is the host that holds it; zero if all registrants do, or if there is none.
	Holder Host
	// Registrants are in the order in which they have registered.
	Registrants []Registrant
}

// Validate returns an error if the State, as it was read from a store, is not valid.
func (r *State) Validate() error {
	if len(r.Registrants) > MaxRegistrants {
		return fmt.Errorf("%d registrants: at most %d are possible", len(r.Registrants),
			MaxRegistrants)
	}
	for i, g := range r.Registrants {
		if g.Key == 0 || g.HostID == [16]byte{} || r.find(g.Host) != i {
			return fmt.Errorf("registrant %x with key %#x", g.HostID, g.Key)
		}
	}
	single := r.Type != 0 && !r.Type.AllRegistrants()
	if r.Type > nvme.ExclusiveAccessAllRegistrants || single != (r.Holder != Host{}) ||
		single && r.find(r.Holder) < 0 || r.Type != 0 && len(r.Registrants) == 0 {
		return fmt.Errorf("%v with the holder %x", r.Type, r.Holder)
	}
	return nil
}

func (r *State) equal(o *State) bool {
	return r.Generation == o.Generation && r.PTPL == o.PTPL && r.Type == o.Type &&
		r.Holder == o.Holder && slices.Equal(r.Registrants, o.Registrants)
}

// find returns the index of a registrant, or -1.
func (r *State) find(host Host) int {
	return slices.IndexFunc(r.Registrants, func(g Registrant) bool { return g.Host == host })
}

// full returns why there is no place for another host, nil if there is one.
func (r *State) full(q *Request) error {
	same, unknown, there := 0, 0, 0
	for _, g := range r.Registrants {
		if g.NQN == q.Host.NQN {
			same++
		}
		if !q.Known(g.NQN) {
			unknown++
			if g.Network == q.Network {
				there++
			}
		}
	}
	switch {
	case len(r.Registrants) >= MaxRegistrants:
		return fmt.Errorf("%d hosts are registered, the limit", len(r.Registrants))
	case same >= registrantsOfNQN:
		return fmt.Errorf("%d hosts with this NQN are registered, the limit", same)
	case q.Known(q.Host.NQN):
	case unknown >= registrantsOfUnknown:
		return fmt.Errorf("%d hosts that are not in the configuration are registered, the limit",
			unknown)
	case subnet.Exceeds(there, 1, registrantsOfUnknown-unknown-1):
		return fmt.Errorf("%d hosts at %s that are not in the configuration are registered, their "+
			"share of %d", there, subnet.Text(q.Network), registrantsOfUnknown)
	}
	return nil
}

// holds reports whether a host holds the reservation.
func (r *State) holds(host Host) bool {
	return r.Type.AllRegistrants() && r.find(host) >= 0 || r.Type != 0 && r.Holder == host
}

// Request is a reservation command.
type Request struct {
	nvme.ReservationSQE
	Op   nvme.Opcode
	Keys nvme.ReservationKeys
	Host Host
	// Network is subnet.Of the address of the host.
	Network netip.Addr
	// Known reports whether the configuration has an NQN. Any goroutine calls it.
	Known func(nqn string) bool
	Full  error // why there was no place for another registrant
}

// Check checks a Register, Acquire or Release command as far as that is possible without the keys
// (Base sections 7.5 to 7.7), and returns how long its data is at least. persist: reservations can
// persist.
func Check(sqe *nvme.SQE, persist bool) (size uint32, valid bool) {
	q := sqe.Reservation()
	size = uint32(len(nvme.ReservationKeys{}))
	switch sqe.Opcode() {
	case nvme.IOReservationRegister:
		valid = q.Action() <= nvme.ReservationReplace && (q.CPTPL() == nvme.KeepPTPL ||
			q.CPTPL() == nvme.ClearPTPL || q.CPTPL() == nvme.SetPTPL && persist)
	case nvme.IOReservationAcquire:
		valid = q.Action() <= nvme.ReservationPreemptAndAbort && !q.IEKEY() &&
			q.Type() >= nvme.WriteExclusive && q.Type() <= nvme.ExclusiveAccessAllRegistrants
	default:
		size = nvme.ReservationReleaseSize
		valid = q.Action() <= nvme.ReservationClear && !q.IEKEY()
	}
	return size, valid
}

// Outcome is the result of a change.
type Outcome struct {
	Next          *State
	notifications map[Host]nvme.ReservationNotification
	// aborted are the hosts that Preempt and Abort preempts. Their commands are aborted.
	aborted map[Host]bool
	// acquired: the command promises that devices have nothing of hosts without access, also if
	// these had none before. A host may repeat a command that has failed because they had.
	acquired bool
}

// Apply is the state machine of Base section 8.1.22: r does not change.
func (r *State) Apply(q *Request) (Outcome, nvme.Status) {
	next := *r
	next.Registrants = slices.Clone(r.Registrants)
	o := Outcome{Next: &next, notifications: map[Host]nvme.ReservationNotification{}}
	var st nvme.Status
	switch q.Op {
	case nvme.IOReservationRegister:
		st = o.register(q)
	case nvme.IOReservationAcquire:
		st = o.acquire(q)
	case nvme.IOReservationRelease:
		st = o.release(q)
	}
	if !st.OK() {
		return Outcome{}, st
	}
	return o, nvme.Success
}

// register registers, unregisters or replaces a key (Base sections 7.6, 8.1.22.3 and 8.1.22.4).
// With IEKEY the absence of a current key is not an error.
func (o *Outcome) register(q *Request) nvme.Status {
	r := o.Next
	i := r.find(q.Host)
	registered, key := i >= 0, q.Keys.Other()
	switch {
	case q.Action() != nvme.ReservationUnregister && key == 0:
		return invalid // a registrant without a key could not be told from others
	case q.Action() == nvme.ReservationRegister && registered && r.Registrants[i].Key != key,
		q.Action() != nvme.ReservationRegister && !q.IEKEY() && !r.hasKey(q.Host, q.Keys.Current()):
		return conflict
	case q.Action() == nvme.ReservationUnregister:
		before := r.Type
		r.remove(func(g Registrant) bool { return g.Host == q.Host })
		if r.Type != before && !before.SingleHolder() {
			o.notifyOthers(q.Host, nvme.ReservationReleased)
		}
	case registered:
		r.Registrants[i].Key = key
	default:
		if q.Full = r.full(q); q.Full != nil {
			return tooMany
		}
		r.Registrants = append(r.Registrants, Registrant{q.Host, key, q.Network})
	}
	if q.CPTPL() != nvme.KeepPTPL {
		r.PTPL = q.CPTPL() == nvme.SetPTPL
	}
	r.Generation++
	return nvme.Success
}

// hasKey reports whether a host is registered with this key.
func (r *State) hasKey(host Host, key uint64) bool {
	i := r.find(host)
	return i >= 0 && r.Registrants[i].Key == key
}

// remove unregisters hosts and returns them. The reservation ends with its only holder, or with the
// last registrant.
func (r *State) remove(which func(Registrant) bool) (removed []Host) {
	r.Registrants = slices.DeleteFunc(r.Registrants, func(g Registrant) bool {
		if !which(g) {
			return false
		}
		removed = append(removed, g.Host)
		return true
	})
	if len(r.Registrants) == 0 || !r.Type.AllRegistrants() && r.find(r.Holder) < 0 {
		r.hold(0, Host{})
	}
	return removed
}

// hold makes host the holder of a reservation; type 0 releases it.
func (r *State) hold(typ nvme.ReservationType, host Host) {
	if typ == 0 || typ.AllRegistrants() {
		host = Host{}
	}
	r.Type, r.Holder = typ, host
}

// notifyOthers notifies all registrants but one host.
func (o *Outcome) notifyOthers(host Host, typ nvme.ReservationNotification) {
	for _, g := range o.Next.Registrants {
		if g.Host != host {
			o.notifications[g.Host] = typ
		}
	}
}

// acquire acquires a reservation or preempts (Base sections 7.5, 8.1.22.5 and 8.1.22.7).
func (o *Outcome) acquire(q *Request) nvme.Status {
	r := o.Next
	o.acquired = true
	switch {
	case !r.hasKey(q.Host, q.Keys.Current()):
		return conflict
	case q.Action() != nvme.ReservationAcquire:
		return o.preempt(q)
	case r.Type == 0:
		r.hold(q.Type(), q.Host)
	case r.Type != q.Type() || !r.holds(q.Host):
		return conflict
	}
	return nvme.Success
}

// preempt unregisters hosts by their key and takes the reservation over if its holder is meant:
// PRKEY is the holder's, or 0 if all registrants hold it. A key that nobody has is a conflict if
// all registrants hold it, and if another host does, which has come first. The holder may repeat
// its preempt.
func (o *Outcome) preempt(q *Request) nvme.Status {
	r := o.Next
	before, take, key := r.Type, false, q.Keys.Other()
	switch {
	case before.AllRegistrants():
		take = key == 0
	case before != 0:
		if take = r.hasKey(r.Holder, key); !take && key == 0 {
			return invalid
		}
	}
	all := take && key == 0
	removed := r.remove(func(g Registrant) bool {
		return (all || g.Key == key) && (!take || g.Host != q.Host)
	})
	switch {
	case take:
		r.hold(q.Type(), q.Host)
	case len(removed) == 0 && before != 0 && r.Holder != q.Host:
		return conflict
	}
	o.aborted = map[Host]bool{}
	for _, host := range removed {
		if host == q.Host {
			continue
		}
		o.notifications[host] = nvme.RegistrationPreempted
		if q.Action() == nvme.ReservationPreemptAndAbort {
			o.aborted[host] = true
		}
	}
	if r.Type != before {
		o.notifyOthers(q.Host, nvme.ReservationReleased)
	}
	r.Generation++
	return nvme.Success
}

// release releases the reservation, or clears everything (Base sections 7.7, 8.1.22.6 and
// 8.1.22.8). It is not an error if there is none, or if another host holds it.
func (o *Outcome) release(q *Request) nvme.Status {
	r := o.Next
	before := r.Type
	switch {
	case !r.hasKey(q.Host, q.Keys.Current()):
		return conflict
	case q.Action() == nvme.ReservationClear:
		o.notifyOthers(q.Host, nvme.ReservationPreempted)
		r.remove(func(Registrant) bool { return true })
		r.Generation++
	case before == 0:
	case q.Type() != before:
		return invalid
	case r.holds(q.Host):
		r.hold(0, q.Host)
		if !before.SingleHolder() {
			o.notifyOthers(q.Host, nvme.ReservationReleased)
		}
	}
	return nvme.Success
}

// Cap is RESCAP.
func Cap(persist bool) nvme.ReservationCap {
	c := nvme.ReservationCapTypes | nvme.ReservationCapIEKEY
	if persist {
		c |= nvme.ReservationCapPTPL
	}
	return c
}

// Report is the data of Reservation Report: one structure for each registrant. CNTLID is that of
// dynamic controllers, as in nvmet and SPDK: a host may have several.
func (r *State) Report() []byte {
	s := &nvme.ReservationStatus{
		GEN: r.Generation, RTYPE: r.Type, REGCTL: uint16(len(r.Registrants)),
	}
	if r.PTPL {
		s.PTPLS = 1
	}
	b := nvme.Append(nil, s)
	for _, g := range r.Registrants {
		e := &nvme.RegisteredController{
			CNTLID: nvme.CNTLIDDynamic, RKEY: g.Key, HostID: g.HostID,
		}
		if r.holds(g.Host) {
			e.RCSTS = 1
		}
		b = nvme.Append(b, e)
	}
	return b
}
