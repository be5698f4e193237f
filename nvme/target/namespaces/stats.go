package namespaces

import (
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// Stats describes the namespace, without Backend and Path. Errors has every reason. It does not
// block.
func (ns *Namespace) Stats() observed.Namespace {
	g, n, cfg := ns.geo.Load(), ns.Total(), ns.cfg.Load()
	s := observed.Namespace{
		Subsystem: ns.ID.SubNQN, NSID: ns.ID.NSID, SizeBytes: g.Size(),
		BlockSizeBytes: 1 << g.Shift, WriteProtected: g.ReadOnly, Ready: !g.Unready,
		VolatileCache: g.Info.VolatileCache, ANAGroup: cfg.ANAGroup,
		Limits: cfg.Limiter.Describe(), Allocated: -1, Free: -1,
		Reads: n[backend.OpRead], Writes: n[backend.OpWrite], Flushes: n[backend.OpFlush],
		WriteZeroes: n[backend.OpWriteZeroes], Discards: n[backend.OpDiscard],
		ReadBytes: n[dispatch.Sectors] << 9, WrittenBytes: n[dispatch.Sectors+1] << 9,
		BusySeconds: time.Duration(n[dispatch.Busy]).Seconds(), Errors: map[string]uint64{},
	}
	ns.describe(&s)
	for i, e := range ioErrors {
		s.Errors[e.reason] = n[dispatch.Errors+i]
	}
	if cfg.Space != nil {
		if sp, _, err := cfg.Space.Peek(); sp != nil && err == nil {
			s.Allocated, s.Free = sp.Allocated, sp.Free
		}
	}
	h := ns.Health()
	if d := cfg.Drive; d != nil {
		s.Drive = &observed.Drive{ID: d.ID(), Counts: d.Counts()}
		if l, at, _ := d.Peek(); l != nil {
			s.Drive.Answered, h.Log = at, l
		}
	}
	s.Health = admin.SMART([]admin.Health{h}, admin.Totals{}, 0, ns.common.Started)
	return s
}

func (ns *Namespace) describe(to *observed.Namespace) {
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

// Health is the health of the namespace, as its drive has last answered. It does not block.
func (ns *Namespace) Health() admin.Health {
	ns.state.mu.Lock()
	h := admin.Health{Degraded: ns.state.degraded}
	ns.state.mu.Unlock()
	total := ns.Total()
	h.Totals = Totals(&total)
	if d := ns.cfg.Load().Drive; d != nil {
		h.Drive = d
		h.Log, _, _ = d.Peek()
	}
	return h
}

// Totals are the counters that health logs have.
func Totals(t *dispatch.Counters) admin.Totals {
	return admin.Totals{
		Sectors: [2]uint64(t[dispatch.Sectors:]),
		Reads:   t[backend.OpRead], Writes: t[backend.OpWrite],
		MediaErrors: t[dispatch.Errors+errorIO], Busy: time.Duration(t[dispatch.Busy]),
	}
}

// Space is the storage space that a thin namespace takes, and the space left there, in bytes; Free
// is -1 if it is not known.
type Space struct{ Allocated, Free int64 }

// newSpaceQuery asks a device for its space; nil if it cannot tell.
func newSpaceQuery(dev backend.Device) *admin.Query[Space] {
	d, ok := dev.(backend.SpaceReporter)
	if !ok {
		return nil
	}
	return &admin.Query[Space]{Ask: func() (*Space, error) {
		allocated, free, err := d.Space()
		if err != nil {
			return nil, err
		}
		return &Space{allocated, free}, nil
	}}
}

// Thin returns the query of a namespace that takes its space as it is written, nil for others and
// if the device cannot tell.
func (ns *Namespace) Thin() *admin.Query[Space] {
	if !ns.geo.Load().Info.Thin {
		return nil
	}
	return ns.cfg.Load().Space
}
