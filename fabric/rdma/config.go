// Package rdma is the NVMe/RDMA transport: queue pairs over fabric/rdma/verbs, owned by the reactor
// their group belongs to.
//
// The way of a batch, in one Poll of a group (no locks, nothing allocated):
//
//	poll     one call takes up to 64 completions of all queues of a device
//	recv     a capsule lies in a slot of its queue's registered memory: the SQE is copied into the request of the slot, the SGL
//	         is parsed; in-capsule data stays where it is
//	Prepare  all commands of the batch at once; then in-capsule data is used in place, or memory is taken from the arena, and
//	         writes RDMA READ the host's data into it, as many at once as the host serves
//	Execute  everything whose data is in place
//	flush    what was completed leaves with one post per queue: receives first, then RDMA WRITEs (unsignalled), each followed by
//	         its response (signalled, inline if the device can), then new RDMA READs
//
// A slot's receive is posted again just before its response, so that a host which answers at once
// finds it. The request of the slot stays in use until the response's completion; a capsule that
// lands in the slot before that waits for it.
//
// What may block (creating, registering, accepting, destroying) runs on ordinary goroutines, in
// adopt.go and teardown.go; the queue itself, from its first receive to its last completion,
// belongs to the reactor. "RDMA" in comments is the NVM Express RDMA Transport Specification 1.0,
// "Base" the Base Specification 2.1.
package rdma

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Config is what New needs; zero values mean the defaults named below.
type Config struct {
	// Provider is the RDMA stack. Required.
	Provider verbs.Provider
	// Log takes what happens to connections, never I/O. Default: slog.Default().
	Log *slog.Logger
	// MaxDepth is the largest number of commands on one I/O queue, 2 to 1024. Default 128.
	MaxDepth int
	// InCapsuleSize is the number of data bytes that a command capsule of an I/O queue may carry, a
	// multiple of 16, at most 65536; negative for none. Default 4096: more has corrupted writes of
	// Linux 5.4 to 5.12 hosts.
	InCapsuleSize int
	// StagingSize is the memory per reactor and iWARP device that hosts' data is read into, in
	// bytes. iWARP requires that memory to be writable by peers who guess its key, so it is kept
	// apart from everything else. Default 16 MiB.
	StagingSize int
	// MaxReads is the largest number of RDMA READs in flight per queue, 1 to 255. Device and host
	// may allow less. Default 128.
	MaxReads int
	// MaxQID is the largest queue ID. Default 1024.
	MaxQID int
	// MaxQueues and MaxQueuesPerHost bound the queues of the transport and of one source address,
	// those being connected included. Default 4096 and 1024.
	MaxQueues, MaxQueuesPerHost int
	// QueueMemory bounds the registered memory of all queues in bytes: capsules and in-capsule
	// data, about 4.2 KiB for each command of a queue's depth by default. A queue that does not fit
	// is refused. Default 1 GiB.
	QueueMemory int64
	// SharedReceives is how many commands the queues of a reactor and device take together from one
	// shared receive queue, at most; 0: each queue has receives for its own depth. At most 32768;
	// it is rounded up to a multiple of 128. See shared.go.
	SharedReceives int
	// TOS is the type of service of connections by port ID of their listener; 0 leaves the
	// system's. On RoCE the host's counts.
	TOS map[uint16]uint8

	// ConnectTimeout is the longest time from accepting a connection to its establishment, and from
	// there to a successful Connect command. Default 15 s.
	ConnectTimeout time.Duration
	// SendTimeout is the longest time that work handed to the device makes no progress. Default 30
	// s.
	SendTimeout time.Duration
	// MemoryTimeout is the longest time that a command waits for data memory; then it fails with
	// Command Interrupted, which hosts retry. Default 20 s.
	MemoryTimeout time.Duration
	// LingerTimeout is the longest time that a queue which is being disconnected waits for its last
	// responses to leave. Default 1 s.
	LingerTimeout time.Duration
	// DrainTimeout is the longest time that a dead queue waits for the completions of its work
	// before its queue pair is destroyed all the same. Default 1 s.
	DrainTimeout time.Duration
}

// The bounds of Config, which the configuration's parser uses as well.
const (
	MaxQueueDepth     = 1024 // of MaxDepth
	MaxInCapsuleSize  = 64 << 10
	InCapsuleUnit     = 16        // IOCCSZ counts units of 16 bytes (Base section 5.1.13.2.1)
	MinQueueMemory    = 512 << 10 // a queue of the default depth
	MaxSharedReceives = 1 << 15
	ConnectionsLimit  = 0xFFFF // of MaxQueues and MaxQueuesPerHost
)

const (
	maxDepth       = MaxQueueDepth
	maxAdminDepth  = 128          // Linux hosts ask for 32; drivers/nvme/host/rdma.c, NVME_AQ_DEPTH
	capsuleSize    = nvme.SQESize // of commands, without data: RDMA section 3.3.1, figure 9
	responseSize   = nvme.CQESize
	pageSize       = 4096
	maxSendSGE     = 8    // memory is rarely in more pieces
	cqEntries      = 8192 // of the first completion queue
	cqDoublings    = 6
	openTimeout    = 10 * time.Second
	defaultStaging = 16 << 20
)

// Validate reports what cannot work.
func (c *Config) Validate() error {
	switch {
	case c.Provider == nil:
		return fmt.Errorf("rdma: no provider")
	case c.MaxDepth != 0 && (c.MaxDepth < 2 || c.MaxDepth > maxDepth):
		return fmt.Errorf("rdma: queue depth %d: must be 2 to %d", c.MaxDepth, maxDepth)
	case c.InCapsuleSize > MaxInCapsuleSize ||
		c.InCapsuleSize > 0 && c.InCapsuleSize%InCapsuleUnit != 0:
		return fmt.Errorf("rdma: in-capsule data size %d: must be a multiple of %d up to %d",
			c.InCapsuleSize, InCapsuleUnit, MaxInCapsuleSize)
	case c.StagingSize != 0 && c.StagingSize < 1<<20:
		return fmt.Errorf("rdma: staging memory of %d bytes: must be at least %d", c.StagingSize,
			1<<20)
	case c.MaxReads < 0 || c.MaxReads > 255:
		return fmt.Errorf("rdma: %d RDMA READs in flight: must be 1 to 255", c.MaxReads)
	case c.MaxQID < 0 || c.MaxQID > 0xFFFE:
		return fmt.Errorf("rdma: largest queue ID %d: must be 1 to 65534", c.MaxQID)
	case c.MaxQueues < 0 || c.MaxQueues > ConnectionsLimit || c.MaxQueuesPerHost < 0 ||
		c.MaxQueuesPerHost > ConnectionsLimit:
		return fmt.Errorf("rdma: queue limits must be 1 to %d", ConnectionsLimit)
	case c.QueueMemory != 0 && c.QueueMemory < MinQueueMemory:
		return fmt.Errorf("rdma: queue memory of %d bytes: must be at least %d", c.QueueMemory,
			MinQueueMemory)
	case c.SharedReceives < 0 || c.SharedReceives > MaxSharedReceives:
		return fmt.Errorf("rdma: %d shared receives: must be 0 to %d", c.SharedReceives,
			MaxSharedReceives)
	case c.ConnectTimeout < 0, c.SendTimeout < 0, c.MemoryTimeout < 0, c.LingerTimeout < 0,
		c.DrainTimeout < 0:
		return fmt.Errorf("rdma: time limits must not be negative")
	}
	return nil
}

// SetDefaults replaces zero values by the defaults.
func (c *Config) SetDefaults() {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	fill(&c.MaxDepth, 128)
	fill(&c.InCapsuleSize, 4096)
	c.InCapsuleSize = max(c.InCapsuleSize, 0)
	fill(&c.StagingSize, defaultStaging)
	fill(&c.MaxReads, 128)
	fill(&c.MaxQID, 1024)
	fill(&c.MaxQueues, 4096)
	fill(&c.MaxQueuesPerHost, 1024)
	fill(&c.QueueMemory, 1<<30)
	c.SharedReceives = roundUp(c.SharedReceives, chunkSlots)
	fill(&c.ConnectTimeout, 15*time.Second)
	fill(&c.SendTimeout, 30*time.Second)
	fill(&c.MemoryTimeout, 20*time.Second)
	fill(&c.LingerTimeout, time.Second)
	fill(&c.DrainTimeout, time.Second)
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// limits is what connect requests are judged by.
func (c *Config) limits() cmwire.Limits {
	return cmwire.Limits{
		MaxQID: uint16(c.MaxQID), MaxAdminDepth: maxAdminDepth, MaxDepth: c.MaxDepth,
		MaxCNTLID: nvme.CNTLIDMax,
	}
}

// tick is how often a group with work in flight looks for what is stuck.
func (c *Config) tick() int64 {
	return int64(min(max(min(c.SendTimeout, c.MemoryTimeout)/4, time.Millisecond), 5*time.Second))
}
