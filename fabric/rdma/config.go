// Package rdma is the NVMe/RDMA transport: queue pairs of verbs, each on the reactor of its group.
//
// The path of a command, file by file. Group.Poll (group.go) runs it in batches; nothing here takes
// a lock or allocates:
//
//	group.go    completed      a receive has completed: the capsule belongs to a queue
//	command.go  received       in its turn (turn.go) it gets a request; the SQE is copied, the
//	                           SGL parsed
//	            Prepare        (handler) for the whole batch
//	            prepared       in-capsule data is used where it was received, or:
//	buffers.go  getBuffers     data buffers: memory of the namespace (zero copy) or of the pool
//	            postRead       a write: RDMA READ the host's data
//	            execute        the data is in place
//	            Execute        (handler) for the whole batch
//	queue.go    Complete       the handler is done
//	            run            one post for everything the queue has to send
//	send.go     sendResponse   a read: RDMA WRITEs (unsignaled) to the host's memory; then the
//	                           response (signaled, inline if the device can)
//	            sent           the response has completed: the request is free
//
// wr.go makes and posts the work requests of buffers.go and send.go. Receives are posted first, so
// that a host that answers a response at once finds one.
//
// Blocking work (creating, registering, accepting, destroying) runs on ordinary goroutines:
// adopt.go makes a queue, close.go ends it. Between its first receive and its last completion a
// queue belongs to its reactor. "RDMA" in comments is the NVM Express RDMA Transport Specification
// 1.0, "Base" the Base Specification 2.1.
package rdma

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Config is the configuration of New. A zero field means its default, see SetDefaults. The program
// keeps to the limits, the constants below, which package config checks.
type Config struct {
	// Provider is the RDMA stack of the devices. Required.
	Provider verbs.Provider
	// Soft and SoftIWARP are the RDMA stacks that need no device; nil: there is none.
	Soft, SoftIWARP verbs.Provider
	// Stack returns the choice between them for the listener with a port ID. nil: always
	// fabric.AnyStack. Listen calls it.
	Stack func(portID uint16) fabric.Stack
	// Awaited reports whether the listener with a port ID should wait for a device that is not
	// there at present, although its choice is AnyStack. nil: never. Listen calls it.
	Awaited func(portID uint16) bool
	// Memlock returns an error if memory cannot be registered with a device. nil: it always can.
	// Listen calls it before it serves on devices that lock memory.
	Memlock func() error
	// Log receives events of connections, never I/O. Default: slog.Default().
	Log *slog.Logger
	// MaxDepth is the largest number of commands on one I/O queue, 2 to DepthLimit.
	MaxDepth int
	// InCapsuleSize is the number of data bytes that a command capsule of an I/O queue may carry, a
	// multiple of 16 up to InCapsuleLimit; negative for none. Larger values than the default have
	// corrupted writes of Linux 5.4 to 5.12 hosts.
	InCapsuleSize int
	// StagingSize is the memory per reactor and iWARP device for reading data of hosts, in bytes.
	// Such a device needs a sink of READs that any peer with its key can write, so this memory is
	// kept apart from everything else.
	StagingSize int
	// Limits bound the queues of the transport and of one source address, including queues being
	// connected, and their registered memory: capsules and in-capsule data, by default about 4.2
	// KiB for each command of a queue's depth. A queue that does not fit is refused.
	admission.Limits
	// SRQSize is the number of receives, up to SRQSizeLimit, that the queues of a reactor and
	// device share through one shared receive queue, rounded up to a multiple of 128. If it is 0,
	// each queue has receives for its own depth. See srq.go.
	SRQSize int
	// TOS returns the type of service of connections of the listener with a port ID; 0 leaves the
	// default of the system. On RoCE the host's value is used. nil: always 0. Listen calls it.
	TOS func(portID uint16) uint8
	// Lost is called by any goroutine when the listener with a port ID stops accepting, because its
	// device was removed or its address moved to another device. The listener has to be closed, but
	// not by Lost itself, and may be opened again. nil: not called.
	Lost func(portID uint16)

	// ConnectTimeout is the longest time from accepting a connection to its establishment, and from
	// there to a successful Connect command.
	ConnectTimeout time.Duration
	// SendTimeout is the time for work requests posted together, up to twice that for each.
	SendTimeout time.Duration
	// MemoryTimeout is the longest time that a command waits for data buffers. Then it fails with
	// Command Interrupted, and hosts retry it.
	MemoryTimeout time.Duration
	// LingerTimeout is the longest wait of a disconnecting queue for its last responses.
	LingerTimeout time.Duration
	// DrainTimeout is the longest time that an ended queue waits for the completions of its work
	// requests before its queue pair is destroyed anyway.
	DrainTimeout time.Duration
}

// The limits of a Config.
const (
	DepthLimit     = 1024
	InCapsuleLimit = 64 << 10
	InCapsuleUnit  = 16 // as IOCCSZ counts (Base section 5.1.13.2.1)
	QueuesLimit    = 0xFFFF
	MinQueueMemory = 576 << 10 // a queue of default depth
	SRQSizeLimit   = 1 << 15
)

const (
	maxQID        = 1024         // the maximum number of I/O queues of a host
	maxReads      = 128          // RDMA READs in flight per queue; device and host may allow less
	maxAdminDepth = 128          // Linux hosts ask for 32: drivers/nvme/host/rdma.c, NVME_AQ_DEPTH
	capsuleSize   = nvme.SQESize // of commands, without data: RDMA section 3.3.1, figure 9
	responseSize  = nvme.CQESize
	pageSize      = 4096
	maxSendSGE    = 8 // buffers rarely have more segments
	openTimeout   = 10 * time.Second
)

// SetDefaults replaces zero values by the defaults.
func (c *Config) SetDefaults() {
	c.Log = cmp.Or(c.Log, slog.Default())
	c.MaxDepth = cmp.Or(c.MaxDepth, 128)
	c.InCapsuleSize = cmp.Or(c.InCapsuleSize, 4<<10)
	c.InCapsuleSize = max(c.InCapsuleSize, 0)
	c.StagingSize = cmp.Or(c.StagingSize, 16<<20)
	c.Connections = cmp.Or(c.Connections, 4096)
	c.PerHost = cmp.Or(c.PerHost, 1024)
	c.Memory = cmp.Or(c.Memory, 1<<30)
	c.Turns = true
	c.SRQSize = roundUp(c.SRQSize, srqSlabSlots)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 15*time.Second)
	c.SendTimeout = cmp.Or(c.SendTimeout, 30*time.Second)
	c.MemoryTimeout = cmp.Or(c.MemoryTimeout, 20*time.Second)
	c.LingerTimeout = cmp.Or(c.LingerTimeout, time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, time.Second)
}

// limits returns the limits for checking connect requests.
func (c *Config) limits() cmwire.Limits {
	return cmwire.Limits{
		MaxQID: maxQID, MaxAdminDepth: maxAdminDepth, MaxDepth: c.MaxDepth,
		MaxCNTLID: nvme.CNTLIDMax,
	}
}

// tickInterval is the time between checks of the progress of a group with work in flight.
func (c *Config) tickInterval() int64 {
	return int64(min(max(min(c.SendTimeout, c.MemoryTimeout)/8, time.Millisecond), 5*time.Second))
}
