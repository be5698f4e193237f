package target

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// health is what is wrong with a namespace. The I/O path learns of it by the geometry.
type health struct {
	mu       sync.Mutex
	degraded bool      // writes that were accepted may be lost
	orphans  int       // IOs that devices have although their commands were given up
	since    time.Time // of the first of them
	timeouts uint64    // commands given up
	returns  uint64    // how often storage that was away or did not answer came back
}

// update changes the state of a namespace, and tells hosts if that makes a difference to them. Any
// goroutine.
func (ns *namespace) update(change func(*health)) {
	ns.state.mu.Lock()
	old := ns.geo.Load()
	change(&ns.state)
	g, err := newGeometry(ns.dev.Info(), ns.readOnly || ns.state.degraded)
	if err != nil || g.shift != old.shift { // nothing that hosts could use
		c := *old
		g = &c
		g.info.Offline = true
	}
	g.unready = g.info.Offline || ns.state.orphans > 0
	if old.unready && !g.unready {
		ns.state.returns++
	}
	changed := *g != *old
	if changed {
		ns.geo.Store(g)
	}
	ns.state.mu.Unlock()
	if changed {
		ns.sub.namespaceChanged(ns.nsid)
	}
}

// changed takes over what the device says of itself. A goroutine of the device.
func (ns *namespace) changed(log *slog.Logger) {
	if ns.dev.Info().Degraded {
		ns.degrade(log, backend.ErrDegraded)
	}
	before := ns.geo.Load()
	ns.update(func(*health) {})
	if now := ns.geo.Load(); now.blocks != before.blocks {
		log.Info("the size of a namespace changed", "subsystem", ns.sub.nqn, "nsid", ns.nsid,
			"blocks before", before.blocks, "blocks", now.blocks)
	}
}

// degrade notes that a device may have lost writes that it had accepted (backend.ErrDegraded).
// Until the namespace is opened again it is write protected, and the health log warns; hosts are
// told both. Any reactor; all calls but the first do nothing.
func (ns *namespace) degrade(log *slog.Logger, err error) {
	first := false
	ns.update(func(s *health) { first, s.degraded = !s.degraded, true })
	if !first {
		return
	}
	log.Error("a namespace takes no more writes: what it had accepted may be lost", "subsystem",
		ns.sub.nqn, "nsid", ns.nsid, "err", err)
	ns.sub.each(func(c *controller) {
		c.h.post(func() { c.raise(eventReliability) })
	})
}

// timedOut counts a command that was given up before its device had it.
func (ns *namespace) timedOut() { ns.update(func(s *health) { s.timeouts++ }) }

// orphan notes that the device has an IO whose command was given up. Any reactor.
func (ns *namespace) orphan(log *slog.Logger) {
	first := false
	ns.update(func(s *health) {
		if first = s.orphans == 0; first {
			s.since = time.Now()
		}
		s.orphans++
		s.timeouts++
	})
	if first {
		log.Error("a device does not answer: its namespace is not ready until it does", "subsystem",
			ns.sub.nqn, "nsid", ns.nsid,
			"device", ns.dev.Info().Identity)
	}
}

// returned notes that such an IO came back. Any reactor.
func (ns *namespace) returned(log *slog.Logger) {
	var since time.Time
	ns.update(func(s *health) {
		if s.orphans--; s.orphans == 0 {
			since = s.since
		}
	})
	if !since.IsZero() {
		log.Warn("a device answers again", "subsystem", ns.sub.nqn, "nsid", ns.nsid, "device",
			ns.dev.Info().Identity,
			"after", time.Since(since).Round(time.Millisecond))
	}
}

// isDegraded: see degrade.
func (ns *namespace) isDegraded() bool {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	return ns.state.degraded
}

// criticalWarning is the warning of the health log for these namespaces: a degraded one lowers the
// reliability, and if there is no other, everything is read-only.
func criticalWarning(list []*namespace) (w uint8) {
	degraded := 0
	for _, ns := range list {
		if ns.isDegraded() {
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

// judged are the namespaces that log 02h with this NSID is about; whole says that they are all.
func (c *controller) judged(nsid uint32) (list []*namespace, whole bool) {
	table := c.sub.namespaces.Load()
	if ns := table.get(nsid); ns != nil {
		return []*namespace{ns}, false
	}
	return table.list, true
}

// smart makes log 02h of the subsystem or of one namespace.
func (c *controller) smart(nsid uint32, answers map[*namespace]*nvme.SMARTLog) []byte {
	var t ioTotals
	list, whole := c.judged(nsid)
	if whole {
		c.sub.mu.Lock()
		t = c.sub.retired
		c.sub.mu.Unlock()
	}
	return smartLog(list, answers, t, c.errors.total(), c.t.started).Append(nil)
}

// smartLog makes log 02h of namespaces (Base section 5.1.12.1.3): the health of the drives, as
// answers has it, together with what is known of namespaces without: t is what others did that are
// gone, failures the number of entries of log 01h. Controllers come and go with their hosts, so the
// totals of these are the subsystem's since the target started, which is their power cycle. They
// have no thermometer: a temperature of zero.
func smartLog(list []*namespace, answers map[*namespace]*nvme.SMARTLog, t ioTotals, failures uint64,
	started time.Time,
) *nvme.SMARTLog {
	l := &nvme.SMARTLog{CriticalWarning: criticalWarning(list)}
	drives := map[string]bool{}
	virtual, counted := len(list) == 0, len(list) == 0
	for _, ns := range list {
		d := answers[ns]
		if d == nil || !ns.drive.Counts() {
			counted = true
			t.add(ns.users.total())
		}
		switch {
		case d == nil:
			virtual = true
		case !drives[ns.drive.ID()]:
			merge(l, d, len(drives) == 0)
			drives[ns.drive.ID()] = true
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
		DataUnitsRead: units(t.readSectors), DataUnitsWritten: units(t.wrotSecs),
		HostReads: nvme.MakeUint128(t.reads), HostWrites: nvme.MakeUint128(t.writes),
		BusyTime:    nvme.MakeUint128(uint64(time.Duration(t.busy) / time.Minute)),
		MediaErrors: nvme.MakeUint128(t.mediaErrors),
	}
	if counted {
		own.ErrorLogEntries = nvme.MakeUint128(failures)
	}
	merge(l, own, false)
	return l
}
