package target

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// health is what is wrong with a namespace. The I/O path sees it in the geometry.
type health struct {
	mu       sync.Mutex
	degraded bool      // accepted writes may be lost
	orphans  int       // IOs that devices still have although their commands were given up
	since    time.Time // of the first of them
	timeouts uint64    // commands given up
	returns  uint64    // how often storage that was not ready became so again
}

// update changes the state of a namespace, and notifies hosts if that concerns them. Any goroutine.
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

// changed adopts what the device reports of itself now. A goroutine of the device.
func (ns *namespace) changed(log *slog.Logger) {
	if ns.dev.Info().Degraded {
		ns.degrade(log, backend.ErrDegraded)
	}
	before := ns.geo.Load()
	ns.update(func(*health) {})
	if now := ns.geo.Load(); now.blocks != before.blocks {
		log.Info("the size of a namespace changed", "subsystem", ns.sub.nqn, "nsid", ns.nsid,
			"old_size", before.blocks<<before.shift, "size", now.blocks<<now.shift)
	}
}

// degrade records that a device may have lost writes that it had accepted (backend.ErrDegraded).
// Until the namespace is opened again it is write protected, the health log warns, and hosts are
// notified of both. Any reactor; all calls but the first do nothing.
func (ns *namespace) degrade(log *slog.Logger, err error) {
	first := false
	ns.update(func(s *health) { first, s.degraded = !s.degraded, true })
	if !first {
		return
	}
	log.Error("namespace is write protected: writes that it had accepted may be lost", "subsystem",
		ns.sub.nqn, "nsid", ns.nsid, "err", err)
	ns.sub.each(func(c *controller) {
		c.h.post(func() { c.raise(eventReliability) })
	})
}

// timedOut counts a command that was given up before its device had it.
func (ns *namespace) timedOut() { ns.update(func(s *health) { s.timeouts++ }) }

// orphaned records that the device has an IO whose command was given up. Any reactor.
func (ns *namespace) orphaned(log *slog.Logger) {
	first := false
	ns.update(func(s *health) {
		if first = s.orphans == 0; first {
			s.since = time.Now()
		}
		s.orphans++
		s.timeouts++
	})
	if first {
		log.Error("device does not answer: its namespace is not ready until it does", "subsystem",
			ns.sub.nqn, "nsid", ns.nsid, "device", ns.dev.Info().Identity)
	}
}

// returned records that such an IO came back. Any reactor.
func (ns *namespace) returned(log *slog.Logger) {
	var since time.Time
	ns.update(func(s *health) {
		if s.orphans--; s.orphans == 0 {
			since = s.since
		}
	})
	if !since.IsZero() {
		log.Warn("device answers again", "subsystem", ns.sub.nqn, "nsid", ns.nsid, "device",
			ns.dev.Info().Identity, "duration", time.Since(since).Round(time.Millisecond))
	}
}

// isDegraded: see degrade.
func (ns *namespace) isDegraded() bool {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	return ns.state.degraded
}

// criticalWarning is the warning of the health log for these namespaces: a degraded one lowers the
// reliability, and if all are degraded, everything is read-only.
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

// healthPage makes log 02h of the subsystem or of one namespace.
func healthPage(c *controller, sqe *nvme.SQE) reply {
	page := func(l *nvme.SMARTLog) []byte { return nvme.Append(nil, l) }
	if ns := c.sub.namespaces.Load().get(sqe.NSID()); ns != nil {
		return c.health([]*namespace{ns}, counters{}, page)
	}
	c.sub.mu.Lock()
	retired := c.sub.retired
	c.sub.mu.Unlock()
	return c.health(c.sub.namespaces.Load().list, retired, page)
}

// health makes a page of the health of namespaces; retired has the counters of others that were
// removed. Drives are asked on an ordinary goroutine.
func (c *controller) health(list []*namespace, retired counters,
	page func(*nvme.SMARTLog) []byte,
) reply {
	build := func() reply {
		return reply{data: page(smartLog(list, askDrives(list), retired, c.errors.total(),
			c.t.started))}
	}
	if slices.ContainsFunc(list, func(ns *namespace) bool { return ns.drive != nil }) {
		return reply{slow: build}
	}
	return build()
}

// smartLog makes log 02h of namespaces (Base section 5.1.12.1.3): the health of their drives, as
// answers has it, combined with what is known of namespaces without one. Controllers come and go
// with their hosts, so the totals of these are the subsystem's since the target started, which is
// their power cycle: t has those of removed namespaces, failures is the number of entries of log
// 01h. They have no thermometer: a temperature of zero.
func smartLog(list []*namespace, answers map[*namespace]*nvme.SMARTLog, t counters, failures uint64,
	started time.Time,
) *nvme.SMARTLog {
	l := &nvme.SMARTLog{CriticalWarning: criticalWarning(list)}
	drives := map[string]bool{}
	virtual, counted := len(list) == 0, len(list) == 0
	for _, ns := range list {
		d := answers[ns]
		if d == nil || !ns.drive.Counts() {
			counted = true
			own := ns.users.total()
			t.add(&own)
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
		DataUnitsRead: units(t[statSectors]), DataUnitsWritten: units(t[statSectors+1]),
		HostReads:   nvme.MakeUint128(t[backend.OpRead]),
		HostWrites:  nvme.MakeUint128(t[backend.OpWrite]),
		BusyTime:    nvme.MakeUint128(uint64(time.Duration(t[statBusy]) / time.Minute)),
		MediaErrors: nvme.MakeUint128(t[statErrors+errorIO]),
	}
	if counted {
		own.ErrorLogEntries = nvme.MakeUint128(failures)
	}
	merge(l, own, false)
	return l
}
