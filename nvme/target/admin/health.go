package admin

import (
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Health is the health of a namespace at one moment.
type Health struct {
	// Drive is the hardware, nil if there is none, and Log its last answer, nil if there is none.
	Drive Drive
	Log   *nvme.SMARTLog
	// Degraded: accepted writes may be lost.
	Degraded bool
	Totals
}

// Totals count the I/O of namespaces.
type Totals struct {
	// Sectors are units of 512 bytes, read and then written.
	Sectors                    [2]uint64
	Reads, Writes, MediaErrors uint64
	Busy                       time.Duration
}

func (t *Totals) add(o *Totals) {
	for i, n := range o.Sectors {
		t.Sectors[i] += n
	}
	t.Reads, t.Writes = t.Reads+o.Reads, t.Writes+o.Writes
	t.MediaErrors, t.Busy = t.MediaErrors+o.MediaErrors, t.Busy+o.Busy
}

// criticalWarning is the warning of the health log for namespaces: a degraded one lowers the
// reliability, and if all are degraded, everything is read-only.
func criticalWarning(list []Health) (w uint8) {
	degraded := 0
	for i := range list {
		if list[i].Degraded {
			degraded++
		}
	}
	if degraded > 0 {
		w = nvme.SMARTReliability
		if degraded == len(list) {
			w |= nvme.SMARTReadOnly
		}
	}
	return w
}

// SMART makes log 02h of namespaces (Base section 5.1.12.1.3): the health of their drives, combined
// with the health of namespaces without one. Controllers come and go with their hosts, so the
// totals of the latter are the subsystem's since the target started, which is their power cycle.
// removed has the totals of removed namespaces, failures is the number of entries of log 01h.
// Namespaces without a drive have no thermometer: a temperature of zero.
func SMART(list []Health, removed Totals, failures uint64, started time.Time) *nvme.SMARTLog {
	l := &nvme.SMARTLog{CriticalWarning: criticalWarning(list)}
	drives := map[string]bool{}
	virtual, counted := len(list) == 0, len(list) == 0
	for i := range list {
		h := &list[i]
		if h.Log == nil || !h.Drive.Counts() {
			counted = true
			removed.add(&h.Totals)
		}
		switch {
		case h.Log == nil:
			virtual = true
		case !drives[h.Drive.ID()]:
			merge(l, h.Log, len(drives) == 0)
			drives[h.Drive.ID()] = true
		}
	}
	if virtual {
		merge(l, &nvme.SMARTLog{
			AvailableSpare: 100, PowerCycles: nvme.MakeUint128(1),
			PowerOnHours: nvme.MakeUint128(uint64(time.Since(started) / time.Hour)),
		}, len(drives) == 0)
	}
	units := func(sectors uint64) nvme.Uint128 { return nvme.MakeUint128((sectors + 999) / 1000) }
	own := &nvme.SMARTLog{
		AvailableSpare: l.AvailableSpare, SpareThreshold: l.SpareThreshold,
		DataUnitsRead: units(removed.Sectors[0]), DataUnitsWritten: units(removed.Sectors[1]),
		HostReads:   nvme.MakeUint128(removed.Reads),
		HostWrites:  nvme.MakeUint128(removed.Writes),
		BusyTime:    nvme.MakeUint128(uint64(removed.Busy / time.Minute)),
		MediaErrors: nvme.MakeUint128(removed.MediaErrors),
	}
	if counted {
		own.ErrorLogEntries = nvme.MakeUint128(failures)
	}
	merge(l, own, false)
	return l
}

// merge adds the health of another drive to l: sums of counts, and the worst measurements.
func merge(l, d *nvme.SMARTLog, first bool) {
	l.CriticalWarning |= d.CriticalWarning
	l.EnduranceWarnings |= d.EnduranceWarnings
	margin := func(l *nvme.SMARTLog) int { return int(l.AvailableSpare) - int(l.SpareThreshold) }
	if first || margin(d) < margin(l) {
		l.AvailableSpare, l.SpareThreshold = d.AvailableSpare, d.SpareThreshold
	}
	if first || d.Temperature > l.Temperature {
		l.Temperature, l.TemperatureSensor = d.Temperature, d.TemperatureSensor
	}
	l.PercentageUsed = max(l.PercentageUsed, d.PercentageUsed)
	l.WarningTempTime = max(l.WarningTempTime, d.WarningTempTime)
	l.CriticalTempTime = max(l.CriticalTempTime, d.CriticalTempTime)
	for i := range l.ThermalTransitions {
		l.ThermalTransitions[i] = max(l.ThermalTransitions[i], d.ThermalTransitions[i])
		l.ThermalTime[i] = max(l.ThermalTime[i], d.ThermalTime[i])
	}
	l.PowerCycles = l.PowerCycles.Max(d.PowerCycles)
	l.PowerOnHours = l.PowerOnHours.Max(d.PowerOnHours)
	l.UnsafeShutdowns = l.UnsafeShutdowns.Add(d.UnsafeShutdowns)
	l.DataUnitsRead = l.DataUnitsRead.Add(d.DataUnitsRead)
	l.DataUnitsWritten = l.DataUnitsWritten.Add(d.DataUnitsWritten)
	l.HostReads = l.HostReads.Add(d.HostReads)
	l.HostWrites = l.HostWrites.Add(d.HostWrites)
	l.BusyTime = l.BusyTime.Add(d.BusyTime)
	l.MediaErrors = l.MediaErrors.Add(d.MediaErrors)
	l.ErrorLogEntries = l.ErrorLogEntries.Add(d.ErrorLogEntries)
}

// EnduranceGroup makes log 09h of a group of rotational media (Base section 5.1.12.1.10) from the
// health of its namespace and its size in bytes.
func EnduranceGroup(s *nvme.SMARTLog, size uint64) []byte {
	return nvme.Append(nil, &nvme.EnduranceGroupLog{
		CriticalWarning: s.CriticalWarning &
			(nvme.SMARTSpareLow | nvme.SMARTReliability | nvme.SMARTReadOnly),
		EGFEAT:         nvme.EGFEATRotational,
		AvailableSpare: s.AvailableSpare, SpareThreshold: s.SpareThreshold,
		PercentageUsed:   s.PercentageUsed,
		DataUnitsRead:    billions(s.DataUnitsRead),
		DataUnitsWritten: billions(s.DataUnitsWritten),
		HostReads:        s.HostReads, HostWrites: s.HostWrites,
		MediaErrors: s.MediaErrors, ErrorLogEntries: s.ErrorLogEntries,
		Capacity: nvme.MakeUint128(size),
	})
}

// billions converts thousands of 512 bytes into 10^9 bytes, rounded up.
func billions(units nvme.Uint128) nvme.Uint128 {
	n, ok := units.Uint64()
	if !ok || n > 1<<57 { // more than any drive can do
		return nvme.Uint128{}
	}
	return nvme.MakeUint128((n*64 + 124999) / 125000)
}
