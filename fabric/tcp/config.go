// Package tcp is the NVMe/TCP transport: connections on non-blocking sockets, owned by the reactor
// their group belongs to.
//
// The way of a batch, in one Poll of a group (no locks, nothing allocated):
//
//	recv    one system call takes headers and small data of many PDUs into a buffer that all queues of the group share; the rest
//	        of a large payload goes straight into the request's segments, in the same call
//	parse   each header is validated and its bytes handed on: SQEs into requests, data into segments; what is left of an
//	        incomplete header stays with the queue until the next call
//	Prepare all commands of the batch at once; then memory, R2T or Execute
//	flush   everything queued for a connection leaves in one sendmsg: headers of many PDUs are written side by side into a
//	        buffer of the group, data is referred to where it lies
//
// What a peer does wrong ends its own connection only, with a C2HTermReq that names the error
// ("TCP" in comments is the NVM Express TCP Transport Specification 1.1, "Base" the Base
// Specification 2.1).
package tcp

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
)

// Config is what New needs; zero values mean the defaults named below.
type Config struct {
	// Log takes what happens to connections, never I/O. Default: slog.Default().
	Log *slog.Logger
	// MaxDepth is the largest number of commands on one queue, 2 to 1024. Default 128.
	MaxDepth int
	// InCapsuleSize is the number of data bytes that a command capsule of an I/O queue may carry, a
	// multiple of 16, from 4 KiB to 1 MiB. Fabrics and admin capsules may always carry 8192. Default
	// 131072. Larger writes wait for an R2T.
	InCapsuleSize int
	// MaxH2CData is MAXH2CDATA: the largest number of data bytes in one H2CData PDU; a multiple of
	// 4, at least 4096. Default 1 MiB.
	MaxH2CData int
	// NoHeaderDigest and NoDataDigest refuse digests that a host asks for; it is told so in the
	// ICResp, and usually gives up.
	NoHeaderDigest, NoDataDigest bool
	// ICReqTimeout is the longest time from accept to a complete ICReq. Default 10 s.
	ICReqTimeout time.Duration
	// ConnectTimeout is the longest time from ICReq to a successful Connect command. Default 30 s.
	ConnectTimeout time.Duration
	// DataTimeout is the longest time in which the host must send the data of an R2T, or the rest
	// of a PDU it began. Default 30 s.
	DataTimeout time.Duration
	// SendTimeout is the longest time that something ready to be sent waits for the host to read.
	// Default 30 s.
	SendTimeout time.Duration
	// MemoryTimeout is the longest time that a command waits for data memory; then it fails with
	// Command Interrupted, which hosts retry. Default 20 s.
	MemoryTimeout time.Duration
	// LingerTimeout is the longest time that a connection stays open after a C2HTermReq, at most 30
	// s (TCP section 3.5). Default 10 s. After an orderly end without fault it is at most one
	// second.
	LingerTimeout time.Duration
	// QueueMemory bounds the memory of all queues in bytes: 16 KiB for each and 768 bytes for each
	// command of its depth. A connection that does not fit is closed, a Connect command refused.
	// Data memory (the reactors' arenas) and what the kernel keeps for sockets come besides.
	// Default 1 GiB.
	QueueMemory int64
	// BusyPoll is SO_BUSY_POLL of the connections, in whole microseconds, at most 10 ms: a receive
	// that finds nothing polls the queue of the network device that the connection's packets come
	// by. A reactor never waits in a receive, so that this is one poll each time, however long it
	// says. Some kernels want CAP_NET_ADMIN for it. Default 0, none.
	BusyPoll time.Duration
	// CongestionControl names the congestion control of the connections as seen from here (tcp(7),
	// TCP_CONGESTION); one that the system restricts needs CAP_NET_ADMIN. Default "", the system's.
	// It decides how fast reads leave; writes depend on the host's.
	CongestionControl string
	// MaxConnections and MaxConnectionsPerHost bound the connections of the transport and of one
	// source address. Default 8192 and 4096.
	MaxConnections, MaxConnectionsPerHost int
}

// The bounds of Config, which the configuration's parser uses as well.
const (
	MaxQueueDepth    = 1024 // of MaxDepth
	MinInCapsuleSize = 4 << 10
	MaxInCapsuleSize = 1 << 20
	InCapsuleUnit    = 16        // IOCCSZ counts units of 16 bytes (Base section 5.1.13.2.1)
	MinQueueMemory   = 128 << 10 // a queue of the default depth
	ConnectionsLimit = 1 << 16   // of MaxConnections and MaxConnectionsPerHost
)

const (
	maxDepth       = MaxQueueDepth
	initialDepth   = 2 // requests until Connect tells the size of the queue
	maxBusyPoll    = 10 * time.Millisecond
	orderlyLinger  = time.Second
	maxTermLinger  = 30 * time.Second
	defaultICReq   = 10 * time.Second
	defaultTimeout = 30 * time.Second
)

// Validate reports what cannot work.
func (c *Config) Validate() error {
	switch {
	case c.MaxDepth != 0 && (c.MaxDepth < initialDepth || c.MaxDepth > maxDepth):
		return fmt.Errorf("tcp: queue depth %d: must be %d to %d", c.MaxDepth, initialDepth,
			maxDepth)
	case c.InCapsuleSize != 0 && (c.InCapsuleSize < MinInCapsuleSize ||
		c.InCapsuleSize > MaxInCapsuleSize || c.InCapsuleSize%InCapsuleUnit != 0):
		return fmt.Errorf("tcp: in-capsule data size %d: must be a multiple of %d from %d to %d",
			c.InCapsuleSize, InCapsuleUnit, MinInCapsuleSize, MaxInCapsuleSize)
	case c.MaxH2CData != 0 &&
		(c.MaxH2CData < pdu.MinMaxH2CData || c.MaxH2CData > 1<<30 || c.MaxH2CData%4 != 0):
		return fmt.Errorf("tcp: MAXH2CDATA %d: must be a multiple of 4 from %d to %d", c.MaxH2CData,
			pdu.MinMaxH2CData, 1<<30)
	case c.LingerTimeout > maxTermLinger:
		return fmt.Errorf("tcp: linger time %v: must be at most %v", c.LingerTimeout, maxTermLinger)
	case c.ICReqTimeout < 0, c.ConnectTimeout < 0, c.DataTimeout < 0, c.SendTimeout < 0,
		c.MemoryTimeout < 0, c.LingerTimeout < 0:
		return fmt.Errorf("tcp: time limits must not be negative")
	case c.BusyPoll < 0 || c.BusyPoll > maxBusyPoll || c.BusyPoll%time.Microsecond != 0:
		return fmt.Errorf("tcp: busy polling for %v: must be whole microseconds up to %v",
			c.BusyPoll, maxBusyPoll)
	case c.QueueMemory != 0 && c.QueueMemory < MinQueueMemory:
		return fmt.Errorf("tcp: queue memory of %d bytes: must be at least %d", c.QueueMemory,
			MinQueueMemory)
	case c.MaxConnections < 0 || c.MaxConnections > ConnectionsLimit ||
		c.MaxConnectionsPerHost < 0 || c.MaxConnectionsPerHost > ConnectionsLimit:
		return fmt.Errorf("tcp: connection limits must be 1 to %d", ConnectionsLimit)
	}
	return nil
}

// SetDefaults replaces zero values by the defaults.
func (c *Config) SetDefaults() {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	fill(&c.MaxDepth, 128)
	fill(&c.InCapsuleSize, 128<<10)
	fill(&c.MaxH2CData, 1<<20)
	fill(&c.ICReqTimeout, defaultICReq)
	fill(&c.ConnectTimeout, defaultTimeout)
	fill(&c.DataTimeout, defaultTimeout)
	fill(&c.SendTimeout, defaultTimeout)
	fill(&c.MemoryTimeout, 20*time.Second)
	fill(&c.LingerTimeout, 10*time.Second)
	fill(&c.QueueMemory, 1<<30)
	fill(&c.MaxConnections, 8192)
	fill(&c.MaxConnectionsPerHost, 4096)
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
