package target

import (
	"cmp"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// Stats lists the namespaces, in the order of subsystem and NSID. It does not block: CheckHealth,
// and requests of hosts, refresh the state of drives and the space.
func (t *Target) Stats() []observed.Namespace {
	var list []observed.Namespace
	for _, s := range *t.table.Load() {
		for _, ns := range s.namespaces.Load().list {
			list = append(list, ns.stats())
		}
	}
	slices.SortStableFunc(list,
		func(a, b observed.Namespace) int { return cmp.Compare(a.Subsystem, b.Subsystem) })
	return list
}

// stats describes the namespace, without Backend and Path. Errors has every reason.
func (ns *namespace) stats() observed.Namespace {
	g, n, cfg := ns.geo.Load(), ns.Total(), ns.cfg.Load()
	s := observed.Namespace{
		Subsystem: ns.sub.nqn, NSID: ns.nsid, SizeBytes: g.size(), BlockSizeBytes: 1 << g.shift,
		WriteProtected: g.readOnly, Ready: !g.unready, VolatileCache: g.info.VolatileCache,
		ANAGroup: cfg.anaGroup, Limits: cfg.limiter.Describe(), Allocated: -1, Free: -1,
		Reads: n[backend.OpRead], Writes: n[backend.OpWrite], Flushes: n[backend.OpFlush],
		WriteZeroes: n[backend.OpWriteZeroes], Discards: n[backend.OpDiscard],
		ReadBytes: n[dispatch.Sectors] << 9, WrittenBytes: n[dispatch.Sectors+1] << 9,
		BusySeconds: time.Duration(n[dispatch.Busy]).Seconds(), Errors: map[string]uint64{},
	}
	ns.describe(&s)
	for i, e := range ioErrors {
		s.Errors[e.reason] = n[dispatch.Errors+i]
	}
	if cfg.space != nil {
		if sp, _, err := cfg.space.Peek(); sp != nil && err == nil {
			s.Allocated, s.Free = sp.allocated, sp.free
		}
	}
	h := ns.health()
	if d := cfg.drive; d != nil {
		s.Drive = &observed.Drive{ID: d.ID(), Counts: d.Counts()}
		if l, at, _ := d.Peek(); l != nil {
			s.Drive.Answered, h.Log = at, l
		}
	}
	s.Health = admin.SMART([]admin.Health{h}, admin.Totals{}, 0, ns.sub.t.started)
	return s
}

func (ns *namespace) describe(to *observed.Namespace) {
	s := &ns.state
	s.mu.Lock()
	defer s.mu.Unlock()
	to.Degraded, to.Timeouts, to.Orphans, to.Returns = s.degraded, s.timeouts, s.orphans, s.returns
	switch {
	case ns.paused.Load():
		to.State = "paused"
	case !to.Ready:
		to.State = "not ready"
	case s.degraded:
		to.State = "degraded"
	default:
		to.State = "ready"
	}
}
