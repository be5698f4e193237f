package target

import (
	"cmp"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// NamespaceInfo is the state of a namespace at one moment.
type NamespaceInfo struct {
	SubNQN string
	NSID   uint32
	// Ready is false while the storage is offline or does not answer. Degraded says that accepted
	// writes may be lost.
	Ready, Degraded bool
	// ANAGroup is the ANA group of the namespace; see SetANAStates.
	ANAGroup uint32
	// Paused says that commands wait for ResumeNamespace.
	Paused bool
	// Timeouts counts commands that were given up. Orphans is how many IOs of such commands the
	// device still has, with their memory. Returns counts how often storage that was not ready
	// became ready again.
	Timeouts uint64
	Orphans  int
	Returns  uint64
}

// NamespaceStats describes a namespace for monitoring: its state, its counts since it was added,
// and its health.
type NamespaceStats struct {
	NamespaceInfo
	// Size and BlockSize are in bytes. WriteProtected says that writes are refused, by the
	// configuration, by the device, or because the namespace is degraded.
	Size, BlockSize               int64
	WriteProtected, VolatileCache bool
	// Allocated is the space taken by the content of a thin namespace, Free the space left in its
	// storage, both in bytes; -1 if unknown, or not thin.
	Allocated, Free int64

	// Operations that the device completed successfully, one for each range of a Dataset
	// Management, and bytes in whole sectors of 512.
	Reads, Writes                  uint64
	Flushes, WriteZeroes, Discards uint64
	ReadBytes, WrittenBytes        uint64
	// Errors counts operations that failed, by reason: "offline", "aborted", "io", "no_space",
	// "read_only", "out_of_range", "unsupported", "other".
	Errors map[string]uint64
	// Busy is the time with I/O outstanding, summed over reactors.
	Busy time.Duration

	// Health is log 02h of the namespace as a host would have got it when the drive last answered,
	// less the entries of log 01h, which each controller has of its own.
	Health *nvme.SMARTLog
	// Drive is the hardware that holds the namespace; nil if there is none of its own.
	Drive *DriveState
}

// DriveState is a drive and when it last answered.
type DriveState struct {
	ID string
	// Counts: see admin.Drive.
	Counts bool
	// Answered is when its health was last read; zero: never.
	Answered time.Time
}

// Stats lists the namespaces, in the order of subsystem and NSID. It does not block: CheckHealth,
// and requests of hosts, refresh the state of drives and the space.
func (t *Target) Stats() []NamespaceStats {
	var list []NamespaceStats
	for _, s := range *t.table.Load() {
		for _, ns := range s.namespaces.Load().list {
			list = append(list, ns.stats())
		}
	}
	slices.SortStableFunc(list,
		func(a, b NamespaceStats) int { return cmp.Compare(a.SubNQN, b.SubNQN) })
	return list
}

func (ns *namespace) stats() NamespaceStats {
	g, n := ns.geo.Load(), ns.users.total()
	s := NamespaceStats{
		NamespaceInfo: ns.describe(),
		Size:          g.size(), BlockSize: 1 << g.shift,
		WriteProtected: g.readOnly, VolatileCache: g.info.VolatileCache, Allocated: -1, Free: -1,
		Reads: n[backend.OpRead], Writes: n[backend.OpWrite], Flushes: n[backend.OpFlush],
		WriteZeroes: n[backend.OpWriteZeroes], Discards: n[backend.OpDiscard],
		ReadBytes: n[statSectors] << 9, WrittenBytes: n[statSectors+1] << 9,
		Errors: map[string]uint64{}, Busy: time.Duration(n[statBusy]),
	}
	for i, e := range ioErrors {
		s.Errors[e.reason] = n[statErrors+i]
	}
	cfg := ns.cfg.Load()
	if cfg.space != nil {
		if sp, _, err := cfg.space.Peek(); sp != nil && err == nil {
			s.Allocated, s.Free = sp.allocated, sp.free
		}
	}
	h := ns.health()
	if d := cfg.drive; d != nil {
		s.Drive = &DriveState{ID: d.ID(), Counts: d.Counts()}
		if l, at, _ := d.Peek(); l != nil {
			s.Drive.Answered, h.Log = at, l
		}
	}
	s.Health = admin.SMART([]admin.Health{h}, admin.Totals{}, 0, ns.sub.t.started)
	return s
}

func (ns *namespace) describe() NamespaceInfo {
	s := &ns.state
	s.mu.Lock()
	defer s.mu.Unlock()
	return NamespaceInfo{
		SubNQN: ns.sub.nqn, NSID: ns.nsid, Ready: !ns.geo.Load().unready, Degraded: s.degraded,
		Paused: s.paused, ANAGroup: ns.cfg.Load().anaGroup,
		Timeouts: s.timeouts, Orphans: s.orphans, Returns: s.returns,
	}
}
