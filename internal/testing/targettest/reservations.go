// Package targettest has models of the specifications, without any code of package target. Tests
// compare package target with them.
package targettest

import (
	"maps"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// The rules of the specification, row by row (Base section 8.1.22.1): the access of a host that
// does not hold the reservation, by type; not registered, then registered. A: allowed, C: conflict.
var (
	readGroup  = []string{"AA", "AA", "CC", "AA", "CA", "AA", "CA"}
	writeGroup = []string{"AA", "CC", "CC", "CA", "CA", "CA", "CA"}
)

// Reservations are the reservations of a namespace as the sections 8.1.22.3 to 8.1.22.8 of Base
// describe them, as literally as possible. Hosts have numbers. One goroutine uses them.
type Reservations struct {
	Keys       map[int]uint64 // of the hosts that are registered
	Type       int
	Holder     int // if Type is 1 to 4
	Generation uint32
	PTPL       bool
	Mask       uint32
	// Notify is called with a notification for all controllers of a host.
	Notify func(h int, typ nvme.ReservationNotification)
}

// Notifications are the reservation notifications of a controller.
type Notifications struct {
	pages []nvme.ReservationLog
	count uint64
}

const (
	conflict = nvme.ReservationConflict | nvme.DNR
	invalid  = nvme.InvalidField | nvme.DNR
)

func (r *Reservations) everyoneHolds() bool { return r.Type == 5 || r.Type == 6 }

// Holds reports whether a host holds the reservation.
func (r *Reservations) Holds(h int) bool {
	_, registered := r.Keys[h]
	return registered && r.Type != 0 && (r.everyoneHolds() || r.Holder == h)
}

// Conflict is the status of a command of the read or write command group.
func (r *Reservations) Conflict(h int, write bool) nvme.Status {
	row := readGroup
	if write {
		row = writeGroup
	}
	column := 0
	if _, registered := r.Keys[h]; registered {
		column = 1
	}
	if r.Holds(h) || row[r.Type][column] == 'A' {
		return nvme.Success
	}
	return conflict
}

func (r *Reservations) tell(h int, typ nvme.ReservationNotification) {
	if r.Mask>>typ&1 == 0 {
		r.Notify(h, typ)
	}
}

func (r *Reservations) tellRegistrants(but int, typ nvme.ReservationNotification) {
	for h := range r.Keys {
		if h != but {
			r.tell(h, typ)
		}
	}
}

// unregister removes a registrant; the reservation is released with its only holder.
func (r *Reservations) unregister(h int) {
	held := r.Holds(h)
	delete(r.Keys, h)
	if held && (!r.everyoneHolds() || len(r.Keys) == 0) {
		r.Type = 0
	}
}

// Register is a Reservation Register command.
func (r *Reservations) Register(h int, act nvme.ReservationAction, iekey bool, crkey,
	nrkey uint64, cptpl nvme.ChangePTPL,
) nvme.Status {
	key, registered := r.Keys[h]
	if act != nvme.ReservationUnregister && nrkey == 0 {
		return invalid
	}
	if act != nvme.ReservationRegister && !iekey && (!registered || key != crkey) {
		return conflict
	}
	switch act {
	case nvme.ReservationRegister:
		if registered && key != nrkey {
			return conflict
		}
		r.Keys[h] = nrkey
	case nvme.ReservationUnregister:
		before := r.Type
		r.unregister(h)
		if (before == 3 || before == 4) && r.Type == 0 {
			r.tellRegistrants(h, nvme.ReservationReleased)
		}
	case nvme.ReservationReplace:
		r.Keys[h] = nrkey
	}
	r.Generation++
	if cptpl != nvme.KeepPTPL {
		r.PTPL = cptpl == nvme.SetPTPL
	}
	return nvme.Success
}

// Acquire is a Reservation Acquire command.
func (r *Reservations) Acquire(h int, act nvme.ReservationAction, crkey, prkey uint64,
	typ int,
) nvme.Status {
	if key, registered := r.Keys[h]; !registered || key != crkey {
		return conflict
	}
	if act == nvme.ReservationAcquire {
		switch {
		case r.Type == 0:
			r.Type, r.Holder = typ, h
			return nvme.Success
		case r.Holds(h) && r.Type == typ:
			return nvme.Success
		}
		return conflict
	}
	return r.preempt(h, prkey, typ)
}

// preempt is Preempt, and Preempt and Abort while there is nothing to abort.
func (r *Reservations) preempt(h int, prkey uint64, typ int) nvme.Status {
	before, victims, takes := r.Type, map[int]bool{}, false
	for v, key := range r.Keys {
		if key == prkey {
			victims[v] = true
		}
	}
	switch {
	case r.everyoneHolds() && prkey == 0:
		takes = true
		for v := range r.Keys {
			victims[v] = true
		}
	case r.Type != 0 && !r.everyoneHolds() && victims[r.Holder]:
		takes = true
	case r.Type != 0 && !r.everyoneHolds() && prkey == 0:
		return invalid
	case len(victims) == 0 && r.everyoneHolds(),
		len(victims) == 0 && r.Type != 0 && !r.Holds(h): // a choice, see ADR 0027
		return conflict
	}
	if takes {
		delete(victims, h)
	}
	for v := range victims {
		r.unregister(v)
		if v != h {
			r.tell(v, nvme.RegistrationPreempted)
		}
	}
	if takes {
		r.Type, r.Holder = typ, h
	}
	if before != r.Type {
		r.tellRegistrants(h, nvme.ReservationReleased)
	}
	r.Generation++
	return nvme.Success
}

// Release is a Reservation Release command.
func (r *Reservations) Release(h int, act nvme.ReservationAction, crkey uint64, typ int,
) nvme.Status {
	if key, registered := r.Keys[h]; !registered || key != crkey {
		return conflict
	}
	if act == nvme.ReservationClear {
		r.tellRegistrants(h, nvme.ReservationPreempted)
		r.Keys, r.Type = map[int]uint64{}, 0
		r.Generation++
		return nvme.Success
	}
	if r.Type == 0 {
		return nvme.Success
	}
	if r.Type != typ {
		return invalid
	}
	if r.Holds(h) {
		r.Type = 0
		if typ > 2 {
			r.tellRegistrants(h, nvme.ReservationReleased)
		}
	}
	return nvme.Success
}

// Report returns the data of Reservation Report, with the registrants in the order of their hosts,
// which is not specified. id makes Host Identifiers.
func (r *Reservations) Report(id func(h int) [16]byte) (nvme.ReservationStatus,
	[]nvme.RegisteredController,
) {
	s := nvme.ReservationStatus{
		GEN: r.Generation, RTYPE: nvme.ReservationType(r.Type), REGCTL: uint16(len(r.Keys)),
	}
	if r.PTPL {
		s.PTPLS = 1
	}
	var list []nvme.RegisteredController
	for _, h := range slices.Sorted(maps.Keys(r.Keys)) {
		e := nvme.RegisteredController{
			CNTLID: nvme.CNTLIDDynamic, RKEY: r.Keys[h], HostID: id(h),
		}
		if r.Holds(h) {
			e.RCSTS = 1
		}
		list = append(list, e)
	}
	return s, list
}

// Add adds a notification for a namespace.
func (l *Notifications) Add(typ nvme.ReservationNotification, nsid uint32) {
	l.count++
	if n := len(l.pages); n == 64 {
		l.pages[n-1].Count = l.count
	} else {
		l.pages = append(l.pages, nvme.ReservationLog{Count: l.count, Type: typ, NSID: nsid})
	}
}

// Len is how many there are.
func (l *Notifications) Len() int { return len(l.pages) }

// Read takes the oldest notification of a controller.
func (l *Notifications) Read() (page nvme.ReservationLog) {
	if len(l.pages) > 0 {
		page, l.pages = l.pages[0], l.pages[1:]
		page.Available = uint8(len(l.pages))
	}
	return page
}

// Restart is a power cycle.
func (r *Reservations) Restart() {
	r.Mask = 0
	if !r.PTPL {
		r.Keys, r.Type, r.Generation = map[int]uint64{}, 0, 0
	}
}
