package target

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// namespaceState is the condition of a namespace: faults and write protection. The I/O path sees it
// in the geometry.
type namespaceState struct {
	mu       sync.Mutex
	degraded bool      // accepted writes may be lost
	orphans  int       // IOs that devices still have although their commands were given up
	since    time.Time // of the first of them
	logged   bool      // that there are some
	timeouts uint64    // commands given up
	returns  uint64    // how often storage that was not ready became so again

	protection nvme.WriteProtection // by hosts
}

// update changes the state of a namespace, and notifies hosts if that concerns them. Any goroutine.
func (ns *namespace) update(change func(*namespaceState)) {
	ns.state.mu.Lock()
	old := ns.geo.Load()
	change(&ns.state)
	cfg := ns.cfg.Load()
	g, err := newGeometry(cfg.dev.Info(), cfg.readOnly || ns.state.degraded ||
		ns.state.protection != nvme.NoWriteProtect)
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
	if changed && ns.sub.namespaces.Load().get(ns.nsid) == ns { // not before, not after
		ns.notify(cfg.visible)
	}
}

// changed adopts the present Info of the device. A goroutine of the device, or the goroutine that
// adds the namespace.
func (ns *namespace) changed(log *slog.Logger) {
	if ns.cfg.Load().dev.Info().Degraded {
		ns.degrade(log, backend.ErrDegraded)
	}
	before := ns.geo.Load()
	ns.update(func(*namespaceState) {})
	if now := ns.geo.Load(); now.blocks != before.blocks {
		log.Info("the size of a namespace changed", "subsystem", ns.sub.nqn, "nsid", ns.nsid,
			"old_size", before.size(), "size", now.size())
		ns.marks.Cut(now.size())
	}
}

// degrade records that a device may have lost writes that it had accepted (backend.ErrDegraded).
// Until the namespace is opened again it is write protected, the health log warns, and hosts are
// notified of both. Any reactor; all calls but the first do nothing.
func (ns *namespace) degrade(log *slog.Logger, err error) {
	first := false
	ns.update(func(s *namespaceState) { first, s.degraded = !s.degraded, true })
	if !first {
		return
	}
	log.Error("namespace is write protected: writes that it had accepted may be lost", "subsystem",
		ns.sub.nqn, "nsid", ns.nsid, "err", err)
	ns.sub.eachSoon(func(c *controller) {
		if ns.cfg.Load().visible(c.hostNQN) {
			c.h.post(func() { c.raise(admin.EventReliability) })
		}
	})
}

// timedOut counts a command that is given up. Any reactor.
func (ns *namespace) timedOut() { ns.update(func(s *namespaceState) { s.timeouts++ }) }

// orphaned records that the device has an IO of a command that was given up. The caller then
// cancels the IO. Reactor of h.
func (ns *namespace) orphaned(h *Handler) {
	first := false
	ns.update(func(s *namespaceState) {
		if first = s.orphans == 0; first {
			s.since = time.Now()
		}
		s.orphans++
	})
	if first {
		h.post(func() { ns.logOrphans(h.t.log) }) // once cancelable IOs are back
	}
}

// logOrphans logs that the device has such IOs, once until all are back. Any reactor.
func (ns *namespace) logOrphans(log *slog.Logger) {
	ns.state.mu.Lock()
	first := ns.state.orphans > 0 && !ns.state.logged
	ns.state.logged = ns.state.orphans > 0
	ns.state.mu.Unlock()
	if first {
		log.Error("device does not answer: its namespace is not ready until it does", "subsystem",
			ns.sub.nqn, "nsid", ns.nsid, "device", ns.identity())
	}
}

// returned records that the device has given back such an IO. Any reactor.
func (ns *namespace) returned(log *slog.Logger) {
	var since time.Time
	ns.update(func(s *namespaceState) {
		if s.orphans--; s.orphans == 0 && s.logged {
			since, s.logged = s.since, false
		}
	})
	if !since.IsZero() {
		log.Warn("device answers again", "subsystem", ns.sub.nqn, "nsid", ns.nsid, "device",
			ns.identity(), "duration", time.Since(since).Round(time.Millisecond))
	}
}

// isDegraded reports whether accepted writes may be lost; see degrade.
func (ns *namespace) isDegraded() bool {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	return ns.state.degraded
}

// identity names the storage in logs.
func (ns *namespace) identity() string { return ns.cfg.Load().dev.Info().Identity }
