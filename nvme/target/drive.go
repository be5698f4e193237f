package target

import (
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Drive is hardware that holds namespaces. Any goroutine uses it.
type Drive interface {
	// ID identifies the hardware: namespaces whose drives have the same ID share it.
	ID() string
	// Counts says that SMART includes what was read and written, how long that took, and the
	// errors.
	Counts() bool
	// SMART reads the drive's health, in the form of log 02h; what is not known is zero. It may
	// block for some seconds.
	SMART() (*nvme.SMARTLog, error)
}

// cachedDrive is a Drive and what it last answered.
type cachedDrive struct {
	Drive
	smart query[nvme.SMARTLog]
}

func newCachedDrive(d Drive, log *slog.Logger) *cachedDrive {
	if d == nil {
		return nil
	}
	failed := false
	ask := func() (*nvme.SMARTLog, error) {
		l, err := d.SMART()
		if err != nil && !failed {
			log.Warn("the health of a drive cannot be read; hosts see what is known without it",
				"device", d.ID(), "err", err)
		}
		failed = err != nil
		return l, err
	}
	return &cachedDrive{Drive: d, smart: query[nvme.SMARTLog]{ask: ask, age: time.Second}}
}

// inherit takes over what another one of the same drive has answered.
func (d *cachedDrive) inherit(o *cachedDrive) {
	if d != nil && o != nil && d != o && d.ID() == o.ID() {
		d.smart.last, d.smart.arrived, _ = o.smart.peek()
	}
}

// merge adds the health of one more drive to l: counts are summed, and of measurements the worst
// counts.
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

// driveQueries are the queries for the health of the namespaces' drives.
func driveQueries(list []*namespace) (queries []asker) {
	for _, ns := range list {
		if d := ns.cfg.Load().drive; d != nil {
			queries = append(queries, &d.smart)
		}
	}
	return queries
}

// driveAnswer is what a drive has last answered.
type driveAnswer struct {
	*cachedDrive
	log *nvme.SMARTLog // nil: it has not yet
}

// driveAnswers are the last answers of driveQueries.
func driveAnswers(list []*namespace) map[*namespace]driveAnswer {
	answers := map[*namespace]driveAnswer{}
	for _, ns := range list {
		if d := ns.cfg.Load().drive; d != nil {
			l, _, _ := d.smart.peek()
			answers[ns] = driveAnswer{d, l}
		}
	}
	return answers
}

// CheckHealth reads the health of all drives, and sends an asynchronous event for each critical
// warning that was not set at the last call, and for each temperature threshold that was reached
// since, to hosts that have enabled it and use the drive (Base section 5.1.2). It also asks for the
// space of thin namespaces. It may block for answerWait; one goroutine calls it, periodically.
func (t *Target) CheckHealth() {
	table := *t.table.Load()
	var queries []asker
	for _, s := range table {
		list := s.namespaces.Load().list
		queries = append(queries, driveQueries(list)...)
		for _, ns := range list {
			if q := ns.thin(); q != nil {
				queries = append(queries, q)
			}
		}
	}
	awaitAll(queries)
	for _, s := range table {
		w, _ := warnings(s.namespaces.Load().list)
		if added := w &^ s.warned; added != 0 {
			t.log.Warn("a drive warns", "subsystem", s.nqn, "warning", added)
		}
		s.warned = w
		s.each(func(c *controller) {
			w, temperature := warnings(s.namespacesOf(c.hostNQN))
			c.h.post(func() { c.checkHealth(w, temperature) })
		})
	}
}

// warnings are the critical warnings of the drives of namespaces, as they have last answered, and
// the highest temperature in kelvin, 0 if none is known.
func warnings(list []*namespace) (w uint8, temperature uint16) {
	for _, a := range driveAnswers(list) {
		if a.log != nil {
			w |= a.log.CriticalWarning
			temperature = max(temperature, a.log.Temperature)
		}
	}
	return w, temperature
}

// checkHealth raises the events of what drives of the host warn of that they had not warned of at
// the last call, and of their highest temperature.
func (c *controller) checkHealth(w uint8, temperature uint16) {
	added := w &^ c.warned
	c.warned = w
	for k := range eventKinds {
		if uint8(eventInfo[k].mask&nvme.EventSMARTMask)&added != 0 {
			c.raise(k)
		}
	}
	c.temperature = temperature
	c.checkTemperature()
}
