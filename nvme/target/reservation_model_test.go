package target

import "github.com/nvmf-target/nvmf-target/nvme"

// The opinion of the specification, row by row (Base section 8.1.22.1): what a host may do that
// does not hold the reservation, by type; not registered, then registered. A: allowed, C: conflict.
var (
	readGroup  = []string{"AA", "AA", "CC", "AA", "CA", "AA", "CA"}
	writeGroup = []string{"AA", "CC", "CC", "CA", "CA", "CA", "CA"}
)

// model is a namespace with reservations as the sections 8.1.22.3 to 8.1.22.8 describe it, as
// literally as possible and without a line of the code that it tests.
type model struct {
	keys   map[int]uint64 // of the hosts that are registered
	typ    int
	holder int // if typ is 1 to 4
	gen    uint32
	ptpl   bool
	mask   uint32
	logs   [len(modelHosts)][]nvme.ReservationLog // by controller
	counts [len(modelHosts)]uint64
}

// modelHosts are the hosts of the controllers: the first one has two.
var modelHosts = [...]int{0, 1, 2, 3, 0}

const (
	modelOK       = nvme.Success
	modelConflict = nvme.ReservationConflict | nvme.DNR
	modelInvalid  = nvme.InvalidField | nvme.DNR
)

func (m *model) everyoneHolds() bool { return m.typ == 5 || m.typ == 6 }

func (m *model) isHolder(h int) bool {
	_, registered := m.keys[h]
	return registered && m.typ != 0 && (m.everyoneHolds() || m.holder == h)
}

// io is the status of a command of the read or write command group.
func (m *model) io(h int, write bool) nvme.Status {
	row := readGroup
	if write {
		row = writeGroup
	}
	column := 0
	if _, registered := m.keys[h]; registered {
		column = 1
	}
	if m.isHolder(h) || row[m.typ][column] == 'A' {
		return modelOK
	}
	return modelConflict
}

// tell is a notification to all controllers of a host.
func (m *model) tell(h int, typ nvme.ReservationNotification) {
	if m.mask>>typ&1 != 0 {
		return
	}
	for c, of := range modelHosts {
		if of != h {
			continue
		}
		m.counts[c]++
		if n := len(m.logs[c]); n == 64 {
			m.logs[c][n-1].Count = m.counts[c]
		} else {
			m.logs[c] = append(m.logs[c],
				nvme.ReservationLog{Count: m.counts[c], Type: typ, NSID: 1})
		}
	}
}

func (m *model) tellRegistrants(but int, typ nvme.ReservationNotification) {
	for h := range m.keys {
		if h != but {
			m.tell(h, typ)
		}
	}
}

// unregister removes a registrant; the reservation is released with its only holder.
func (m *model) unregister(h int) {
	held := m.isHolder(h)
	delete(m.keys, h)
	if held && (!m.everyoneHolds() || len(m.keys) == 0) {
		m.typ = 0
	}
}

func (m *model) register(h int, act nvme.ReservationAction, iekey bool, crkey, nrkey uint64,
	cptpl nvme.ChangePTPL,
) nvme.Status {
	key, registered := m.keys[h]
	switch act {
	case 0:
		if nrkey == 0 {
			return modelInvalid
		}
		if registered && key != nrkey {
			return modelConflict
		}
		m.keys[h] = nrkey
	case 1:
		if !iekey && (!registered || key != crkey) {
			return modelConflict
		}
		before := m.typ
		m.unregister(h)
		if (before == 3 || before == 4) && m.typ == 0 {
			m.tellRegistrants(h, nvme.ReservationReleased)
		}
	case 2:
		if nrkey == 0 {
			return modelInvalid
		}
		if !iekey && (!registered || key != crkey) {
			return modelConflict
		}
		m.keys[h] = nrkey
	}
	m.gen++
	if cptpl == 2 {
		m.ptpl = false
	} else if cptpl == 3 {
		m.ptpl = true
	}
	return modelOK
}

func (m *model) acquire(h int, act nvme.ReservationAction, crkey, prkey uint64, typ int,
) nvme.Status {
	if key, registered := m.keys[h]; !registered || key != crkey {
		return modelConflict
	}
	if act == 0 {
		switch {
		case m.typ == 0:
			m.typ, m.holder = typ, h
			return modelOK
		case m.isHolder(h) && m.typ == typ:
			return modelOK
		}
		return modelConflict
	}
	before, victims, takes := m.typ, map[int]bool{}, false
	for v, key := range m.keys {
		if key == prkey {
			victims[v] = true
		}
	}
	switch {
	case m.everyoneHolds() && prkey == 0:
		takes = true
		for v := range m.keys {
			victims[v] = true
		}
	case m.typ != 0 && !m.everyoneHolds() && victims[m.holder]:
		takes = true
	case m.typ != 0 && !m.everyoneHolds() && prkey == 0:
		return modelInvalid
	case len(victims) == 0 && m.everyoneHolds(),
		len(victims) == 0 && m.typ != 0 && !m.isHolder(h): // a choice, see ADR 0027
		return modelConflict
	}
	if takes {
		delete(victims, h)
	}
	for v := range victims {
		m.unregister(v)
		if v != h {
			m.tell(v, nvme.RegistrationPreempted)
		}
	}
	if takes {
		m.typ, m.holder = typ, h
	}
	if before != m.typ {
		m.tellRegistrants(h, nvme.ReservationReleased)
	}
	m.gen++
	return modelOK
}

func (m *model) release(h int, act nvme.ReservationAction, crkey uint64, typ int) nvme.Status {
	if key, registered := m.keys[h]; !registered || key != crkey {
		return modelConflict
	}
	if act == 1 {
		m.tellRegistrants(h, nvme.ReservationPreempted)
		m.keys, m.typ = map[int]uint64{}, 0
		m.gen++
		return modelOK
	}
	if m.typ == 0 {
		return modelOK
	}
	if m.typ != typ {
		return modelInvalid
	}
	if m.isHolder(h) {
		m.typ = 0
		if typ > 2 {
			m.tellRegistrants(h, nvme.ReservationReleased)
		}
	}
	return modelOK
}

// restart is a power cycle.
func (m *model) restart() {
	m.mask = 0
	clear(m.logs[:])
	clear(m.counts[:])
	if !m.ptpl {
		m.keys, m.typ, m.gen = map[int]uint64{}, 0, 0
	}
}
