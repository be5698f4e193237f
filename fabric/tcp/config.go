// Package tcp is the NVMe/TCP transport: non-blocking sockets, each on the reactor of its group.
//
// These are the files, in the order in which a command passes them. receive.go draws the paths of
// the data:
//
//	listener.go  accepts connections and passes them to a group
//	group.go     finds the connections that have something to do
//	queue.go     the life of a connection; request.go that of a command
//	receive.go   takes bytes off a socket and cuts them into PDUs
//	command.go   makes requests of capsules, and has the handler prepare them in batches
//	buffers.go   memory for the data of a request
//	execute.go   passes requests to the handler and takes them back
//	send.go      sends responses, with the data of reads
//	deadline.go  ends requests and connections that take too long
//	secure.go    TLS, see package tls
//
// A protocol error of a peer ends only its own connection, with a C2HTermReq for the error. In
// comments "TCP" is the NVM Express TCP Transport Specification 1.1, "Base" the Base Specification
// 2.1.
package tcp

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/internal/listen"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// The limits of a Config.
const (
	MinQueueDepth = 2 // the requests of a queue until Connect gives its size
	MaxQueueDepth = 1024
	// InCapsuleUnit is the unit of in-capsule data sizes and IOCCSZ (Base section 5.1.13.2.1).
	InCapsuleUnit    = 16
	MinInCapsuleSize = 4 << 10
	MaxInCapsuleSize = 1 << 20
	MinQueueMemory   = 160 << 10 // a queue of the default depth
	ConnectionsLimit = 1 << 16   // for Limits.Connections and Limits.PerHost
	// MaxEvicted is the number of evicted connections that may be open beyond Limits.Connections.
	MaxEvicted = admission.MaxEvicted
)

// Config is the configuration of New. Zero values mean the defaults, see SetDefaults. The program
// keeps to the limits, which package config checks.
type Config struct {
	// Log receives events of connections, never I/O. Default: slog.Default().
	Log *slog.Logger
	// MaxDepth is the largest number of commands on one queue, MinQueueDepth to MaxQueueDepth.
	MaxDepth int
	// InCapsuleSize is the number of data bytes that a command capsule of an I/O queue may carry, a
	// multiple of InCapsuleUnit from MinInCapsuleSize to MaxInCapsuleSize. Fabrics and admin
	// capsules may always carry 8192. Larger writes wait for an R2T.
	InCapsuleSize int
	// MaxH2CData is MAXH2CDATA: the most data bytes of one H2CData PDU. It is a multiple of 4, and
	// at least pdu.MinMaxH2CData.
	MaxH2CData int
	// NoHeaderDigest and NoDataDigest refuse digests that a host requests. The ICResp reports that,
	// and hosts usually give up then.
	NoHeaderDigest, NoDataDigest bool
	// ICReqTimeout is the longest time from accept to a complete ICReq.
	ICReqTimeout time.Duration
	// ConnectTimeout is the longest time from ICReq to a successful Connect command.
	ConnectTimeout time.Duration
	// DataTimeout is the longest time in which the host must send the data of an R2T, or the rest
	// of a PDU it began.
	DataTimeout time.Duration
	// SendTimeout is the longest time that data ready to be sent waits for the host to read.
	SendTimeout time.Duration
	// MemoryTimeout is the longest time that a command waits for data memory. Then it fails with
	// Command Interrupted, hosts retry it, and in-capsule data is discarded. After a quarter of it,
	// a host that keeps the memory without progress may lose its connection.
	MemoryTimeout time.Duration
	// LingerTimeout is the longest time that a connection stays open after a C2HTermReq, at most 30
	// s (TCP section 3.5). After an orderly end without fault it is at most one second.
	LingerTimeout time.Duration
	// Limits bound the connections of the transport and of one source address, and the memory of
	// their queues: 16 KiB for each and 864 bytes for each command of its depth. A connection that
	// does not fit is closed, and a Connect command refused. Data memory (the reactors' pools) and
	// the kernel's memory for sockets are not included.
	admission.Limits
	// CongestionControl is the congestion control of the target's side of connections (tcp(7),
	// TCP_CONGESTION); one that the system restricts needs CAP_NET_ADMIN. The default "" is the
	// system's. It affects the speed of reads; the host's affects writes.
	CongestionControl string
	// TLS returns the policy for new connections of a listener; nil means that none uses TLS. PSKs
	// returns the PSKs with an identity, none if it is unknown; both must take the same time. It
	// must be set if TLS is. Any goroutine calls them, and PSKs makes new secrets in each call.
	TLS  func(portID uint16) fabric.TLSPolicy
	PSKs func(identity []byte) []auth.TLSPSK
	// KeyCounts reports whether a host still has the key of a PSK. Otherwise Connect is refused
	// after the handshake. nil means that it has. Any goroutine calls it.
	KeyCounts func(hostNQN string, k *auth.TLSKey) bool
	// KeysExpired reports, for the log, whether a host has keys that have all expired; nil means
	// that it has not. Reactors call it.
	KeysExpired func(hostNQN string) bool
	// Sockets keeps listening sockets while the program is restarted; nil: they are closed.
	Sockets listen.Sockets
}

// SetDefaults replaces zero values by the defaults.
func (c *Config) SetDefaults() {
	c.Log = cmp.Or(c.Log, slog.Default())
	c.MaxDepth = cmp.Or(c.MaxDepth, 128)
	c.InCapsuleSize = cmp.Or(c.InCapsuleSize, 128<<10)
	c.MaxH2CData = cmp.Or(c.MaxH2CData, 1<<20)
	c.ICReqTimeout = cmp.Or(c.ICReqTimeout, 10*time.Second)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	c.DataTimeout = cmp.Or(c.DataTimeout, 30*time.Second)
	c.SendTimeout = cmp.Or(c.SendTimeout, 30*time.Second)
	c.MemoryTimeout = cmp.Or(c.MemoryTimeout, 20*time.Second)
	c.LingerTimeout = cmp.Or(c.LingerTimeout, 10*time.Second)
	c.Connections = cmp.Or(c.Connections, 8192)
	c.PerHost = cmp.Or(c.PerHost, 4096)
	c.Memory = cmp.Or(c.Memory, 1<<30)
	c.Turns = true
}
