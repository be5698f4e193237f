package target

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Drive is hardware that namespaces lie on. Any goroutine uses it.
type Drive interface {
	// ID is that of the hardware: namespaces whose drives have the same one share it.
	ID() string
	// Counts says that SMART has what was read and written, how long that took, and the errors.
	Counts() bool
	// SMART reads the drive's health, in the form of log 02h; what is not known is zero. It may
	// block for some seconds.
	SMART() (*nvme.SMARTLog, error)
}

// healthAge is how old an answer of a drive may be that is passed on: hosts may ask as often as
// they like.
const healthAge = time.Second

// hardware is a Drive and what it answered.
type hardware struct {
	Drive
	mu   sync.Mutex
	at   time.Time              // under mu: when it was asked
	ok   bool                   // under mu: it answered when it was asked
	last atomic.Pointer[answer] // stored under mu: its last answer, nil before there is one
}

// answer is what a drive said, and when. It is immutable.
type answer struct {
	log *nvme.SMARTLog
	at  time.Time
}

func newHardware(d Drive) *hardware {
	if d == nil {
		return nil
	}
	return &hardware{Drive: d, ok: true}
}

// read is the health of the drive, nil if it never told. It may block.
func (d *hardware) read(log *slog.Logger) *nvme.SMARTLog {
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
		log.Warn("the health of a drive cannot be read: hosts see what is known without it",
			"drive", d.ID(), "err", err)
	}
	d.ok = err == nil
	return d.latest()
}

// latest is what the drive last told, nil if it never did.
func (d *hardware) latest() *nvme.SMARTLog {
	if a := d.last.Load(); a != nil {
		return a.log
	}
	return nil
}

// merge adds the health of one more drive to l: what is counted is the sum, what is measured that
// of the worst.
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
	l.WarningTempTime, l.CriticalTempTime = max(l.WarningTempTime, d.WarningTempTime),
		max(l.CriticalTempTime, d.CriticalTempTime)
	for i := range l.ThermalTransitions {
		l.ThermalTransitions[i],
			l.ThermalTime[i] = max(l.ThermalTransitions[i], d.ThermalTransitions[i]),
			max(l.ThermalTime[i], d.ThermalTime[i])
	}
	l.PowerCycles, l.PowerOnHours = l.PowerCycles.Max(d.PowerCycles),
		l.PowerOnHours.Max(d.PowerOnHours)
	l.UnsafeShutdowns = l.UnsafeShutdowns.Add(d.UnsafeShutdowns)
	l.DataUnitsRead, l.DataUnitsWritten = l.DataUnitsRead.Add(d.DataUnitsRead),
		l.DataUnitsWritten.Add(d.DataUnitsWritten)
	l.HostReads, l.HostWrites = l.HostReads.Add(d.HostReads), l.HostWrites.Add(d.HostWrites)
	l.BusyTime, l.MediaErrors = l.BusyTime.Add(d.BusyTime), l.MediaErrors.Add(d.MediaErrors)
	l.ErrorLogEntries = l.ErrorLogEntries.Add(d.ErrorLogEntries)
}

// askDrives asks the drives of the namespaces. It may block.
func (t *Target) askDrives(list []*namespace) map[*namespace]*nvme.SMARTLog {
	answers := map[*namespace]*nvme.SMARTLog{}
	for _, ns := range list {
		if ns.drive != nil {
			answers[ns] = ns.drive.read(t.log)
		}
	}
	return answers
}

// healthLog answers log 02h if drives are to be asked for it, which may take long, on an ordinary
// goroutine. False: nobody is to be asked.
func (c *controller) healthLog(cm *cmd) bool {
	nsid := cm.req.SQE.NSID()
	list, _ := c.judged(nsid)
	asks := false
	for _, ns := range list {
		asks = asks || ns.drive != nil
	}
	if !asks {
		return false
	}
	go func() {
		answers := c.t.askDrives(list)
		c.h.post(func() { c.h.logPage(cm, c.smart(nsid, answers)) })
	}()
	return true
}

// CheckHealth asks all drives and tells the hosts who want to know of warnings that were not there
// at the last call. It may block for some seconds for each drive; one goroutine calls it, now and
// then.
func (t *Target) CheckHealth() {
	for _, s := range *t.table.Load() {
		var w uint8
		for _, l := range t.askDrives(s.namespaces.Load().list) {
			if l != nil {
				w |= l.CriticalWarning
			}
		}
		fresh := w &^ s.warned
		if s.warned = w; fresh == 0 {
			continue
		}
		t.log.Warn("a drive warns", "subsystem", s.nqn, "critical_warning", fresh)
		s.each(func(c *controller) {
			c.h.post(func() {
				for k := range eventKinds {
					if uint8(eventInfo[k].mask&nvme.EventSMARTMask)&fresh != 0 {
						c.raise(k)
					}
				}
			})
		})
	}
}
