package target

import (
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// NamespaceInfo describes a namespace at one moment.
type NamespaceInfo struct {
	SubNQN string
	NSID   uint32
	// Ready is false while the storage is away or does not answer; Degraded says that accepted
	// writes may be lost.
	Ready, Degraded bool
	// Timeouts counts commands that were given up, Orphans is how many IOs of such commands the
	// device still has, with their memory, and Returns counts how often storage that was not ready
	// became so again.
	Timeouts uint64
	Orphans  int
	Returns  uint64
}

// NamespaceStats is what monitoring sees of a namespace: its state, what it did since it was added,
// and its health.
type NamespaceStats struct {
	NamespaceInfo
	// Size and BlockSize are in bytes. WriteProtected: configured so, because of the device, or
	// because it is degraded.
	Size, BlockSize               int64
	WriteProtected, VolatileCache bool

	// Operations of the device that succeeded, one for each range of a Dataset Management, and
	// bytes in whole sectors of 512; MediaErrors counts operations that the device failed.
	Reads, Writes                  uint64
	Flushes, WriteZeroes, Discards uint64
	ReadBytes, WrittenBytes        uint64
	MediaErrors                    uint64
	// Busy is the time with I/O outstanding, summed over reactors.
	Busy time.Duration

	// Health is log 02h of the namespace as a host would have got it when the drive last answered,
	// less the entries of log 01h, which is its controller's.
	Health *nvme.SMARTLog
	// Drive is the hardware that the namespace lies on; nil: none of its own.
	Drive *DriveState
}

// DriveState is a drive and when it was heard of.
type DriveState struct {
	ID string
	// Counts: see Drive.
	Counts bool
	// Answered is when its health was last read; zero: never.
	Answered time.Time
}

// Stats lists the namespaces, in the order of subsystem and NSID. It waits for no drive:
// CheckHealth and hosts that ask refresh what is known of them.
func (t *Target) Stats() []NamespaceStats {
	var list []NamespaceStats
	for _, s := range *t.table.Load() {
		for _, ns := range s.namespaces.Load().list {
			list = append(list, ns.stats())
		}
	}
	slices.SortStableFunc(list,
		func(a, b NamespaceStats) int { return strings.Compare(a.SubNQN, b.SubNQN) })
	return list
}

func (ns *namespace) stats() NamespaceStats {
	g, t := ns.geo.Load(), ns.users.total()
	s := NamespaceStats{
		NamespaceInfo: ns.describe(),
		Size:          int64(g.blocks << g.shift), BlockSize: 1 << g.shift,
		WriteProtected: g.readOnly, VolatileCache: g.volatile,
		Flushes: t.others[0], WriteZeroes: t.others[backend.OpWriteZeroes-backend.OpFlush],
		Discards: t.others[backend.OpDiscard-backend.OpFlush],
		Reads:    t.reads, Writes: t.writes, ReadBytes: t.readSectors << 9,
		WrittenBytes: t.wrotSecs << 9, MediaErrors: t.mediaErrors,
		Busy: time.Duration(t.busy),
	}
	answers := map[*namespace]*nvme.SMARTLog{}
	if ns.drive != nil {
		s.Drive = &DriveState{ID: ns.drive.ID(), Counts: ns.drive.Counts()}
		if a := ns.drive.last.Load(); a != nil {
			s.Drive.Answered, answers[ns] = a.at, a.log
		}
	}
	s.Health = smartLog([]*namespace{ns}, answers, ioTotals{}, 0, ns.sub.t.started)
	return s
}

func (ns *namespace) describe() NamespaceInfo {
	s := &ns.state
	s.mu.Lock()
	defer s.mu.Unlock()
	return NamespaceInfo{
		SubNQN: ns.sub.nqn, NSID: ns.nsid, Ready: !ns.geo.Load().unready, Degraded: s.degraded,
		Timeouts: s.timeouts, Orphans: s.orphans, Returns: s.returns,
	}
}
