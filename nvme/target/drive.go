package target

import (
	"log/slog"
	"sync"
	"sync/atomic"
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

// healthAge is how old the last answer of a drive may be before it is asked again: hosts may ask as
// often as they like.
const healthAge = time.Second

// cachedDrive is a Drive and what it last answered.
type cachedDrive struct {
	Drive
	mu   sync.Mutex
	at   time.Time              // under mu: when it was last asked
	ok   bool                   // under mu: it answered then
	last atomic.Pointer[answer] // stored under mu: its last answer, nil before there is one
}

// answer is the health that a drive reported, and when. It is immutable.
type answer struct {
	log *nvme.SMARTLog
	at  time.Time
}

func newCachedDrive(d Drive) *cachedDrive {
	if d == nil {
		return nil
	}
	return &cachedDrive{Drive: d, ok: true}
}

// read is the health of the drive, nil if it never reported any. It may block.
func (d *cachedDrive) read(log *slog.Logger) *nvme.SMARTLog {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.at) < healthAge {
		return d.latest()
	}
	l, err := d.SMART()
	d.at = time.Now()
	if err == nil {
		d.last.Store(&answer{l, d.at})
	} else if d.ok {
		log.Warn("the health of a drive cannot be read; hosts see what is known without it",
			"device", d.ID(), "err", err)
	}
	d.ok = err == nil
	return d.latest()
}

// latest is what the drive last reported, nil if it never did.
func (d *cachedDrive) latest() *nvme.SMARTLog {
	if a := d.last.Load(); a != nil {
		return a.log
	}
	return nil
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

// askDrives reads the health of the namespaces' drives. It may block.
func (t *Target) askDrives(list []*namespace) map[*namespace]*nvme.SMARTLog {
	answers := map[*namespace]*nvme.SMARTLog{}
	for _, ns := range list {
		if ns.drive != nil {
			answers[ns] = ns.drive.read(t.log)
		}
	}
	return answers
}

// CheckHealth reads the health of all drives, and sends an asynchronous event for each critical
// warning that was not set at the last call, to hosts that have enabled it (Base section 5.1.2). It
// also measures the space of thin namespaces. It may block for some seconds for each drive; one
// goroutine calls it, periodically.
func (t *Target) CheckHealth() {
	for _, s := range *t.table.Load() {
		list := s.namespaces.Load().list
		for _, ns := range list {
			ns.measureSpace()
		}
		var w uint8
		for _, l := range t.askDrives(list) {
			if l != nil {
				w |= l.CriticalWarning
			}
		}
		added := w &^ s.warned
		if s.warned = w; added == 0 {
			continue
		}
		t.log.Warn("a drive warns", "subsystem", s.nqn, "warning", added)
		s.each(func(c *controller) {
			c.h.post(func() {
				for k := range eventKinds {
					if uint8(eventInfo[k].mask&nvme.EventSMARTMask)&added != 0 {
						c.raise(k)
					}
				}
			})
		})
	}
}
