package e2e

import (
	"maps"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// The opinion of the specification, row by row (Base section 8.1.22.1): what a host may do that
// does not hold the reservation, by type; not registered, then registered. A: allowed, C: conflict.
var (
	modelReadGroup  = []string{"AA", "AA", "CC", "AA", "CA", "AA", "CA"}
	modelWriteGroup = []string{"AA", "CC", "CC", "CA", "CA", "CA", "CA"}
)

// modelReservations are the reservations of a namespace as the sections 8.1.22.3 to 8.1.22.8 of
// Base describe them, as literally as possible.
type modelReservations struct {
	m      *model
	nsid   uint32
	keys   map[int]uint64 // of the hosts that are registered
	typ    int
	holder int // if typ is 1 to 4
	gen    uint32
	ptpl   bool
	mask   uint32
	hidden map[int]bool // hosts that may not use the namespace
}

// modelLog are the reservation notifications of a controller.
type modelLog struct {
	pages []nvme.ReservationLog
	count uint64
}

const (
	modelConflict = nvme.ReservationConflict | nvme.DNR
	modelInvalid  = nvme.InvalidField | nvme.DNR
)

func (r *modelReservations) everyoneHolds() bool { return r.typ == 5 || r.typ == 6 }

func (r *modelReservations) isHolder(h int) bool {
	_, registered := r.keys[h]
	return registered && r.typ != 0 && (r.everyoneHolds() || r.holder == h)
}

// conflict is the status of a command of the read or write command group.
func (r *modelReservations) conflict(h int, write bool) nvme.Status {
	row := modelReadGroup
	if write {
		row = modelWriteGroup
	}
	column := 0
	if _, registered := r.keys[h]; registered {
		column = 1
	}
	if r.isHolder(h) || row[r.typ][column] == 'A' {
		return nvme.Success
	}
	return modelConflict
}

// tell is a notification to all controllers of a host.
func (r *modelReservations) tell(h int, typ nvme.ReservationNotification) {
	if r.mask>>typ&1 != 0 || r.hidden[h] {
		return
	}
	for c, of := range r.m.hosts {
		if of != h {
			continue
		}
		l := &r.m.logs[c]
		l.count++
		if n := len(l.pages); n == 64 {
			l.pages[n-1].Count = l.count
		} else {
			l.pages = append(l.pages,
				nvme.ReservationLog{Count: l.count, Type: typ, NSID: r.nsid})
		}
	}
}

func (r *modelReservations) tellRegistrants(but int, typ nvme.ReservationNotification) {
	for h := range r.keys {
		if h != but {
			r.tell(h, typ)
		}
	}
}

// unregister removes a registrant; the reservation is released with its only holder.
func (r *modelReservations) unregister(h int) {
	held := r.isHolder(h)
	delete(r.keys, h)
	if held && (!r.everyoneHolds() || len(r.keys) == 0) {
		r.typ = 0
	}
}

func (r *modelReservations) register(h int, act nvme.ReservationAction, iekey bool, crkey,
	nrkey uint64, cptpl nvme.ChangePTPL,
) nvme.Status {
	key, registered := r.keys[h]
	if act != nvme.ReservationUnregister && nrkey == 0 {
		return modelInvalid
	}
	if act != nvme.ReservationRegister && !iekey && (!registered || key != crkey) {
		return modelConflict
	}
	switch act {
	case nvme.ReservationRegister:
		if registered && key != nrkey {
			return modelConflict
		}
		r.keys[h] = nrkey
	case nvme.ReservationUnregister:
		before := r.typ
		r.unregister(h)
		if (before == 3 || before == 4) && r.typ == 0 {
			r.tellRegistrants(h, nvme.ReservationReleased)
		}
	case nvme.ReservationReplace:
		r.keys[h] = nrkey
	}
	r.gen++
	if cptpl != nvme.KeepPTPL {
		r.ptpl = cptpl == nvme.SetPTPL
	}
	return nvme.Success
}

func (r *modelReservations) acquire(h int, act nvme.ReservationAction, crkey, prkey uint64,
	typ int,
) nvme.Status {
	if key, registered := r.keys[h]; !registered || key != crkey {
		return modelConflict
	}
	if act == nvme.ReservationAcquire {
		switch {
		case r.typ == 0:
			r.typ, r.holder = typ, h
			return nvme.Success
		case r.isHolder(h) && r.typ == typ:
			return nvme.Success
		}
		return modelConflict
	}
	return r.preempt(h, prkey, typ)
}

// preempt is Preempt, and Preempt and Abort while there is nothing to abort.
func (r *modelReservations) preempt(h int, prkey uint64, typ int) nvme.Status {
	before, victims, takes := r.typ, map[int]bool{}, false
	for v, key := range r.keys {
		if key == prkey {
			victims[v] = true
		}
	}
	switch {
	case r.everyoneHolds() && prkey == 0:
		takes = true
		for v := range r.keys {
			victims[v] = true
		}
	case r.typ != 0 && !r.everyoneHolds() && victims[r.holder]:
		takes = true
	case r.typ != 0 && !r.everyoneHolds() && prkey == 0:
		return modelInvalid
	case len(victims) == 0 && r.everyoneHolds(),
		len(victims) == 0 && r.typ != 0 && !r.isHolder(h): // a choice, see ADR 0027
		return modelConflict
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
		r.typ, r.holder = typ, h
	}
	if before != r.typ {
		r.tellRegistrants(h, nvme.ReservationReleased)
	}
	r.gen++
	return nvme.Success
}

func (r *modelReservations) release(h int, act nvme.ReservationAction, crkey uint64, typ int,
) nvme.Status {
	if key, registered := r.keys[h]; !registered || key != crkey {
		return modelConflict
	}
	if act == nvme.ReservationClear {
		r.tellRegistrants(h, nvme.ReservationPreempted)
		r.keys, r.typ = map[int]uint64{}, 0
		r.gen++
		return nvme.Success
	}
	if r.typ == 0 {
		return nvme.Success
	}
	if r.typ != typ {
		return modelInvalid
	}
	if r.isHolder(h) {
		r.typ = 0
		if typ > 2 {
			r.tellRegistrants(h, nvme.ReservationReleased)
		}
	}
	return nvme.Success
}

// report is what Reservation Report returns, with the registrants in the order of their hosts,
// which is not specified. id makes Host Identifiers.
func (r *modelReservations) report(id func(h int) [16]byte) (nvme.ReservationStatus,
	[]nvme.RegisteredController,
) {
	s := nvme.ReservationStatus{
		GEN: r.gen, RTYPE: nvme.ReservationType(r.typ), REGCTL: uint16(len(r.keys)),
	}
	if r.ptpl {
		s.PTPLS = 1
	}
	var list []nvme.RegisteredController
	for _, h := range slices.Sorted(maps.Keys(r.keys)) {
		e := nvme.RegisteredController{
			CNTLID: nvme.CNTLIDDynamic, RKEY: r.keys[h], HostID: id(h),
		}
		if r.isHolder(h) {
			e.RCSTS = 1
		}
		list = append(list, e)
	}
	return s, list
}

// read takes the oldest notification of a controller.
func (l *modelLog) read() (page nvme.ReservationLog) {
	if len(l.pages) > 0 {
		page, l.pages = l.pages[0], l.pages[1:]
		page.Available = uint8(len(l.pages))
	}
	return page
}

// restart is a power cycle.
func (r *modelReservations) restart() {
	r.mask = 0
	if !r.ptpl {
		r.keys, r.typ, r.gen = map[int]uint64{}, 0, 0
	}
}
