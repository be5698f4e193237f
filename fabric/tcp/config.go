// Package tcp is the NVMe/TCP transport: connections on non-blocking sockets, each owned by the
// reactor of its group.
//
// The files, in the order in which a command passes them; receive.go draws the paths of the data:
//
//	listener.go  accepts connections and hands them to a group; kept.go keeps its socket
//	group.go     finds the connections that have something to do
//	queue.go     the life of a connection; request.go that of a command
//	receive.go   takes bytes off a socket and cuts them into PDUs
//	command.go   makes requests of capsules, and has the handler prepare them in batches
//	buffers.go   memory for the data of a request
//	execute.go   gives requests to the handler and takes them back
//	send.go      sends responses, with the data of reads
//	deadline.go  ends what takes too long
//	secure.go    TLS, see package tls
//
// What a peer does wrong ends its own connection only, with a C2HTermReq that names the error. In
// comments "TCP" is the NVM Express TCP Transport Specification 1.1, "Base" the Base Specification
// 2.1.
package tcp

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// The limits of a Config.
const (
	MinQueueDepth = 2 // as many requests as a queue has until Connect tells its size
	MaxQueueDepth = 1024
	// InCapsuleUnit is what the size of in-capsule data is a multiple of, as IOCCSZ counts (Base
	// section 5.1.13.2.1).
	InCapsuleUnit    = 16
	MinInCapsuleSize = 4 << 10
	MaxInCapsuleSize = 1 << 20
	MinMaxH2CData    = pdu.MinMaxH2CData
	MaxMaxH2CData    = 1 << 30
	MinQueueMemory   = 160 << 10 // a queue of the default depth
	ConnectionsLimit = 1 << 16   // of MaxConnections and MaxConnectionsPerHost
	// MaxEvicted is how many connections may be open beyond MaxConnections while they end.
	MaxEvicted = admission.MaxEvicted
	// MaxLingerTimeout is the longest that a connection may stay open after a TermReq (TCP section
	// 3.5).
	MaxLingerTimeout = 30 * time.Second
)

// The defaults of a Config.
const (
	DefaultQueueDepth            = 128
	DefaultInCapsuleSize         = 128 << 10
	DefaultMaxH2CData            = 1 << 20
	DefaultICReqTimeout          = 10 * time.Second
	DefaultConnectTimeout        = 10 * time.Second
	DefaultDataTimeout           = 30 * time.Second
	DefaultSendTimeout           = 30 * time.Second
	DefaultMemoryTimeout         = 20 * time.Second
	DefaultLingerTimeout         = 10 * time.Second
	DefaultQueueMemory           = 1 << 30
	DefaultMaxConnections        = 8192
	DefaultMaxConnectionsPerHost = 4096
)

// Config is what New needs. Zero values mean the defaults above.
type Config struct {
	// Log takes what happens to connections, never I/O. Default: slog.Default().
	Log *slog.Logger
	// MaxDepth is the largest number of commands on one queue, MinQueueDepth to MaxQueueDepth.
	MaxDepth int
	// InCapsuleSize is the number of data bytes that a command capsule of an I/O queue may carry, a
	// multiple of InCapsuleUnit from MinInCapsuleSize to MaxInCapsuleSize. Fabrics and admin
	// capsules may always carry 8192. Larger writes wait for an R2T.
	InCapsuleSize int
	// MaxH2CData is MAXH2CDATA: the largest number of data bytes in one H2CData PDU; a multiple of
	// 4, MinMaxH2CData to MaxMaxH2CData.
	MaxH2CData int
	// NoHeaderDigest and NoDataDigest refuse digests that a host asks for. The ICResp says so, and
	// hosts usually give up then.
	NoHeaderDigest, NoDataDigest bool
	// ICReqTimeout is the longest time from accept to a complete ICReq.
	ICReqTimeout time.Duration
	// ConnectTimeout is the longest time from ICReq to a successful Connect command.
	ConnectTimeout time.Duration
	// DataTimeout is the longest time in which the host must send the data of an R2T, or the rest
	// of a PDU it began.
	DataTimeout time.Duration
	// SendTimeout is the longest time that something ready to be sent waits for the host to read.
	SendTimeout time.Duration
	// MemoryTimeout is the longest time that a command waits for data memory; then it fails with
	// Command Interrupted, which hosts retry; in-capsule data is discarded. After a quarter of it,
	// a host that keeps the memory and does not move on may lose its connection.
	MemoryTimeout time.Duration
	// LingerTimeout is the longest time that a connection stays open after a C2HTermReq, up to
	// MaxLingerTimeout. After an orderly end without fault it is at most one second.
	LingerTimeout time.Duration
	// QueueMemory bounds the memory of all queues in bytes: 16 KiB for each and 864 bytes for each
	// command of its depth. A connection that does not fit is closed, a Connect command refused.
	// Data memory (the reactors' pools) and what the kernel keeps for sockets come on top.
	QueueMemory int64
	// CongestionControl names the congestion control of the connections as seen from here (tcp(7),
	// TCP_CONGESTION); one that the system restricts needs CAP_NET_ADMIN. Default "", the system's.
	// It decides how fast reads leave; writes depend on the host's.
	CongestionControl string
	// MaxConnections and MaxConnectionsPerHost bound the connections of the transport and of one
	// source address. Package admission says which part of them, and of QueueMemory, is for
	// connections that are not yet those of allowed hosts.
	MaxConnections, MaxConnectionsPerHost int
	// TLS reports whether new connections of a listener use TLS, nil that none does. PSKs returns
	// those with an identity, none if it is unknown, which must take as long; it must be set if TLS
	// is. Any goroutine calls them, and PSKs makes new secrets in each call.
	TLS  func(portID uint16) fabric.TLSPolicy
	PSKs func(identity []byte) []auth.TLSPSK
	// KeyCounts reports whether a host still has the key of a PSK: Connect is refused otherwise,
	// after the handshake; nil: it has. Any goroutine calls it.
	KeyCounts func(hostNQN string, k *auth.TLSKey) bool
	// KeysExpired says that a host has keys, of which none counts any more, for the log; nil: no.
	// Reactors call it.
	KeysExpired func(hostNQN string) bool
	// Sockets keeps listening sockets while the program is restarted; nil: they are closed.
	Sockets Sockets
}

// Validate reports what cannot work.
func (c *Config) Validate() error {
	switch {
	case c.MaxDepth != 0 && (c.MaxDepth < MinQueueDepth || c.MaxDepth > MaxQueueDepth):
		return fmt.Errorf("tcp: queue depth %d: must be %d to %d", c.MaxDepth, MinQueueDepth,
			MaxQueueDepth)
	case c.InCapsuleSize != 0 && (c.InCapsuleSize < MinInCapsuleSize ||
		c.InCapsuleSize > MaxInCapsuleSize || c.InCapsuleSize%InCapsuleUnit != 0):
		return fmt.Errorf("tcp: in-capsule data size %d: must be a multiple of %d from %d to %d",
			c.InCapsuleSize, InCapsuleUnit, MinInCapsuleSize, MaxInCapsuleSize)
	case c.MaxH2CData != 0 &&
		(c.MaxH2CData < MinMaxH2CData || c.MaxH2CData > MaxMaxH2CData || c.MaxH2CData%4 != 0):
		return fmt.Errorf("tcp: MAXH2CDATA %d: must be a multiple of 4 from %d to %d", c.MaxH2CData,
			MinMaxH2CData, MaxMaxH2CData)
	case c.LingerTimeout > MaxLingerTimeout:
		return fmt.Errorf("tcp: linger time %v: must be at most %v", c.LingerTimeout,
			MaxLingerTimeout)
	case c.ICReqTimeout < 0, c.ConnectTimeout < 0, c.DataTimeout < 0, c.SendTimeout < 0,
		c.MemoryTimeout < 0, c.LingerTimeout < 0:
		return fmt.Errorf("tcp: time limits must not be negative")
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
	fill(&c.MaxDepth, DefaultQueueDepth)
	fill(&c.InCapsuleSize, DefaultInCapsuleSize)
	fill(&c.MaxH2CData, DefaultMaxH2CData)
	fill(&c.ICReqTimeout, DefaultICReqTimeout)
	fill(&c.ConnectTimeout, DefaultConnectTimeout)
	fill(&c.DataTimeout, DefaultDataTimeout)
	fill(&c.SendTimeout, DefaultSendTimeout)
	fill(&c.MemoryTimeout, DefaultMemoryTimeout)
	fill(&c.LingerTimeout, DefaultLingerTimeout)
	fill(&c.QueueMemory, DefaultQueueMemory)
	fill(&c.MaxConnections, DefaultMaxConnections)
	fill(&c.MaxConnectionsPerHost, DefaultMaxConnectionsPerHost)
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
