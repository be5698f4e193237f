// Package fabric defines the contract between the transports (fabric/tcp, fabric/rdma) and
// nvme/target.
//
// This is the path of a command. Each step happens exactly once (Base Specification 2.1, section
// 3.3.2):
//
//	transport receives the capsule, fills SQE, HostLength and InCapsule (owner: transport)
//	Handler.Prepare   sets Dir, Length and maybe Segs, or a Status      (owner: transport again)
//	transport moves host data into Segs when Dir is HostToController    (owner: transport)
//	Handler.Execute   starts the command                                (owner: handler)
//	Queue.Complete    CQE is final; the transport moves data out of Segs,
//	                  sends the response, calls Handler.Sent and
//	                  reuses the request                                (owner: transport)
//
// Zero copy: if the storage of a namespace is memory, Prepare may attach that memory to the request
// (Request.ZeroCopy). The transport then sends from there, or receives into it, and calls
// Handler.EndZeroCopy when its device no longer touches it.
//
// Everything happens on the goroutine of the queue's reactor, unless a comment says otherwise.
package fabric

import (
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Direction is the direction in which the data of a command moves.
type Direction uint8

// The directions of data, seen from the controller.
const (
	NoData           Direction = iota // the command carries no data, or was refused
	HostToController                  // write: the transport fills Segs before Execute
	// Read: the transport sends Segs after Complete, if CQE is successful.
	ControllerToHost
)

// Request is one command from its capsule to its response. Transports allocate the requests of a
// queue once, with the queue, and reuse them; no field is allocated per command.
type Request struct {
	// SQE is the submission queue entry, set by the transport before Prepare, then read-only.
	SQE nvme.SQE
	// CQE is the completion queue entry. The handler fills all of it before Complete.
	CQE nvme.CQE

	// Session is the value that Handler.Open returned for the queue. Queue is the transport's queue
	// that owns this request. The transport sets both when it allocates the request.
	Session Session
	Queue   Queue
	// Owner is the transport's own request, of which this one is a part. Handlers ignore it.
	Owner any
	// Command is the handler's state of the command. It stays when the request is reused.
	Command any

	// HostLength is the number of bytes that the command's SGL describes. Set before Prepare.
	HostLength uint32
	// InCapsule reports whether the data was received with the capsule. Set before Prepare.
	InCapsule bool

	// Dir and Length are the direction and the number of bytes of the data. Set by Prepare. Length
	// is at most HostLength. Dir is NoData if Status is an error.
	Dir    Direction
	Length uint32
	// Segs is the memory that the data moves through, Length bytes in total. If Prepare leaves it
	// empty and Length is not 0, the transport supplies memory and takes it back after the
	// response. Its array belongs to the request and is reused.
	Segs []mem.Segment
	// ZeroCopy reports whether Prepare attached Segs, memory of the namespace itself: for a read
	// memory that Queue.CanSendFrom accepts, for a write memory that Queue.CanReceiveInto accepts.
	// It stays valid until the transport calls Handler.EndZeroCopy, once, when its device no longer
	// touches it. The transport may write anything there until Execute. Prepare attaches nothing to
	// a write if its data was received with its capsule (InCapsule).
	ZeroCopy bool
	// CompletesInExecute reports whether the device is expected to complete a write before Execute
	// returns. Its in-capsule data may then stay where it was received. If the device takes longer
	// after all, the data must stay there for as long as the handler has the request. Set by
	// Prepare.
	CompletesInExecute bool

	// Deferred reports whether the command has to wait before anything is done for it. Set by
	// Prepare. The transport gives it no memory and asks for no data until the handler calls
	// Queue.Resume, and clears Deferred then. If the data comes with the capsule, the transport
	// clears Deferred at once: such a command goes on, and the handler makes it wait in Execute.
	Deferred bool

	// Flow is the flow that the memory is allocated for: that of the host and the namespace of the
	// command, or that of a host that is not known yet. Set by Prepare.
	Flow *mem.Flow

	// Status is nvme.Success, or the reason not to execute the command. The transport sets it
	// before Prepare (malformed SGL) or between Prepare and Execute (the data could not be moved,
	// for instance after a data digest error); Prepare sets it for everything it refuses. A refused
	// request still goes through Execute, which then only completes it.
	Status nvme.Status

	// Start is the arrival of the capsule by Loop.Clock, set by the transport before Prepare.
	Start int64
	// Stages is the time that the command has spent in each stage, in nanoseconds; see Spent.
	Stages [Stages]int64
}

// Reset prepares for the next capsule. Session, Queue, Owner, Command and the array of Segs stay.
func (r *Request) Reset() {
	r.HostLength, r.Length, r.InCapsule, r.Dir = 0, 0, false, NoData
	r.ZeroCopy, r.CompletesInExecute, r.Deferred = false, false, false
	clear(r.Segs)
	r.Segs = r.Segs[:0]
	r.Status, r.Flow = nvme.Success, nil
	r.Start, r.Stages = 0, [Stages]int64{}
}

// Session is the handler's own state of one queue; transports only carry it.
type Session any

// Handler is the controller side; nvme/target makes one per reactor. All methods are called by that
// reactor only, with arrays that the caller owns: a handler must not keep the slices, only the
// requests.
type Handler interface {
	// Open is called once per accepted queue before its first command. An error refuses the queue:
	// the transport closes the connection (TCP) or rejects it with "no resources" (RDMA).
	Open(q Queue) (Session, error)
	// Prepare validates commands and sets Dir, Length and Segs, or a Status. No data moves and
	// nothing is changed.
	Prepare(reqs []*Request)
	// Execute starts commands with their data in place. Each is completed exactly once by
	// Queue.Complete, during this call or in a later poll of the same reactor.
	Execute(reqs []*Request)
	// Abandon tells the handler that a prepared request will never be executed, because its queue
	// ended while data moved, or while it was deferred.
	Abandon(req *Request)
	// Sent tells the handler that the response to req has left, with its data; Request.Stages is
	// final. It is called once, before the request is reset. It is not called if the queue ends
	// first.
	Sent(req *Request)
	// EndZeroCopy gives back the memory that Prepare attached; see Request.ZeroCopy.
	EndZeroCopy(req *Request)
	// WriterWaits reports whether a command or a change of the namespace waits for the end of req,
	// a zero-copy read or write. Commands wait for reads only.
	WriterWaits(req *Request) bool
	// Close is called exactly once per session when its queue has ended. Requests that the handler
	// still has must come back through Queue.Complete as soon as the backend no longer uses their
	// memory; the transport drops them.
	Close(s Session)
}

// Queue is one transport queue (a TCP connection, an RDMA queue pair) as the handler sees it. Only
// the reactor that owns it may call its methods, except where a comment says otherwise.
type Queue interface {
	// Complete gives requests back to the transport, which sends responses (and data) or, if the
	// queue has ended, drops them. The transport does not keep the slice.
	Complete(reqs []*Request)
	// Resume continues a request that Prepare has deferred and that the handler has prepared again.
	// It does not call the handler.
	Resume(r *Request)
	// SetDepth is called once, before the successful response to Connect is completed: the queue
	// will carry at most depth commands (SQSIZE+1). The transport allocates the missing resources,
	// from its part for such peers and from the share of the host. An error names the exhausted
	// resource and refuses the Connect with "no resources".
	SetDepth(depth int, p Peer, c Claim) error
	// Hold(true) tells the transport that the handler works on a message from the peer of an
	// Unproven queue. Until Hold(false) the queue is not evicted. Any goroutine may call it.
	Hold(on bool)
	// Allow tells the transport that the host of an Unproven queue has authenticated. It fails if
	// the queue was evicted, has ended, or lacks resources. Reactor only.
	Allow() error
	// CanSendFrom reports whether the transport can send straight from segs, each of which lies
	// within one mem.ChunkSize of its region. Registering memory takes time: a later call may
	// return true after an earlier one returned false.
	CanSendFrom(segs []mem.Segment) bool
	// CanReceiveInto is CanSendFrom for data from the host.
	CanReceiveInto(segs []mem.Segment) bool
	// HandOverBuffers takes from the transport the memory that it supplied for an executing
	// request, because a device may go on using it after the request is completed. Segs is nil
	// afterwards. free gives the memory back, once, on the same reactor, when the device no longer
	// uses it; the queue may have ended by then. A nil free means that the transport cannot give
	// the memory away (zero copy, or part of the queue itself): the request cannot be completed
	// before the device is done.
	HandOverBuffers(r *Request) (free func())
	// Disconnect starts the orderly end of the queue: no further capsule is taken, outstanding
	// requests are drained or dropped, then Handler.Close is called. Calling it again is harmless.
	// The handler has already logged why if that is of interest.
	Disconnect(reason error)
	// Info describes the connection; it never changes.
	Info() *QueueInfo
}

// DigestReporter is a Queue that may use digests.
type DigestReporter interface {
	// Digests reports whether header and data digests are in use. Reactor only.
	Digests() (header, data bool)
}

// Linked is a Queue that can report on the network path of its connection.
type Linked interface {
	// Link asks the system, which takes some microseconds. It returns false if the connection has
	// ended. Any goroutine may call it at any time, except a reactor.
	Link() (Link, bool)
}

// Link is the state of the network path of a connection.
type Link struct {
	// Retransmits is the number of packets sent again since the connection began.
	Retransmits uint64
	// RTT is the current estimate of the round-trip time.
	RTT time.Duration
}

// FailureReporter is a Queue that can report that its connection has failed.
type FailureReporter interface {
	// Failure is the error that ended the queue, or nil if the peer, the handler or an operator
	// ended it. Reactor only, from Handler.Close on.
	Failure() error
}

// HandlerMemory is the memory that the handler keeps for a queue of an Allowed peer besides its
// commands, in bytes. The transport counts it with the memory of the queue.
const HandlerMemory = 24 << 10

// Peer classifies the peer of a queue after a successful Connect command.
type Peer uint8

// The classes of peers.
const (
	// Unproven: the host has yet to authenticate, so the peer may be anyone.
	Unproven Peer = iota
	// Discovery: the queue belongs to a discovery controller, which anyone may create.
	Discovery
	// Allowed: an NVM subsystem allows the host, or it has authenticated for discovery.
	Allowed
)

// Claim is the identity that a Connect command claims for a queue.
type Claim struct {
	// Host is the NQN of the host. Proven reports whether the connection has proven it by TLS;
	// Queue.Allow reports authentication.
	Host   string
	Proven bool
	// Admin reports whether it is an admin queue.
	Admin bool
}

// HandlerMemory returns the handler's memory for a queue of such a peer, in bytes.
func (p Peer) HandlerMemory() int64 {
	if p == Allowed {
		return HandlerMemory
	}
	return 0
}

// QueueInfo describes a connection. It is immutable once the queue exists and may be read by any
// goroutine.
type QueueInfo struct {
	// Transport is RDMA or TCP.
	Transport nvme.TransportType
	// Local and Remote are the addresses of this connection. Local is a real address even if the
	// listener is on a wildcard.
	Local, Remote netip.AddrPort
	// PortID identifies the listener (NVMe port) that accepted the connection; see Listener.
	PortID uint16
	// QID is the host's queue ID outside of Connect (RDMA CM private data), -1 if there is none.
	QID int
	// CNTLID is the controller ID that the host gave with QID, or FFFFh.
	CNTLID uint16
	// MaxDepth is the largest number of commands the transport can take on this queue. That of an
	// admin queue also bounds the I/O queues of its controller: it becomes CAP.MQES+1.
	MaxDepth int
	// InCapsuleSize is the number of data bytes that a command capsule of an I/O queue may carry.
	InCapsuleSize int
	// MSDBD is the largest number of SGL data block descriptors a command may carry.
	MSDBD int
	// TLS is nil if the connection is not encrypted.
	TLS *TLS
}

// Addr is the address of a listener.
type Addr struct {
	// Transport is RDMA or TCP.
	Transport nvme.TransportType
	// AddrPort is the address, maybe a wildcard, and the transport service ID (port).
	netip.AddrPort
}

// String is "tcp 10.0.0.1:4420".
func (a Addr) String() string { return a.Transport.String() + " " + a.AddrPort.String() }

// Transport makes listeners and groups. Its methods may be called by any goroutine and may block.
type Transport interface {
	// Type is RDMA or TCP.
	Type() nvme.TransportType
	// Listen starts to accept connections at addr. accept is called on an ordinary goroutine for
	// each connection that may be served; it hands the connection to the group of its choice
	// (Group.Adopt) or closes it. portID is copied into QueueInfo.PortID.
	Listen(addr Addr, portID uint16, accept func(Conn)) (Listener, error)
	// NewGroup makes the group of one reactor. The caller attaches it to the reactor.
	NewGroup(cfg GroupConfig) (Group, error)
	// Usage returns the current counts of connections and their memory.
	Usage() Usage
	// Shares lists the shares of hosts and networks in the limits, in no particular order.
	Shares() []Share
	// Close closes listeners and shared resources. The groups must be closed before.
	Close() error
}

// Usage is the resources that the queues of a transport take.
type Usage struct {
	// Connections is the number of all connections. Unassociated ones have had no successful
	// Connect command, or their host has yet to authenticate. Discovery ones belong to discovery
	// controllers.
	Connections, Unassociated, Discovery int
	// Refused counts connections and Connect commands that would have exceeded a limit. Evicted
	// counts connections that ended because newer ones took their place.
	Refused, Evicted uint64
	// OverShare counts the refused Connect commands that would have exceeded the share of a host or
	// of a network, or used the part kept for others. OutOfTurn counts the refused connections from
	// networks that had failed lately, while others waited for their turn.
	OverShare, OutOfTurn uint64
	// Memory is the memory of queues without data, and MemoryLimit its limit, in bytes.
	Memory, MemoryLimit int64
	// Quarantined is the number of queues, since the start, that ended although the device may
	// still use their memory. That memory is kept.
	Quarantined int
	// Handshakes counts completed TLS handshakes since the start. FailedHandshakes counts the
	// handshakes that ended with their connection.
	Handshakes, FailedHandshakes uint64
}

// Share is the part of the limits of a transport that a host or a network takes, and the maximum it
// may take while others take no more than they do now.
type Share struct {
	subnet.Owner
	Connections, MostConnections int64
	Memory, MostMemory           int64 // in bytes
}

// Loop is the part of a reactor that a group uses; *reactor.Reactor implements it.
type Loop interface {
	// Post runs fn on the reactor soon. Any goroutine may call it.
	Post(fn func())
	// Wake makes a sleeping reactor poll; else it is an atomic load. Any goroutine may call it.
	Wake()
	// Watch calls fn on the reactor whenever fd has one of the epoll events. Unwatch ends that.
	// Reactor only.
	Watch(fd int, events uint32, fn func(events uint32)) error
	Unwatch(fd int) error
	// After runs fn on the reactor once, d nanoseconds from now or slightly later. stop may be
	// called repeatedly. Reactor only.
	After(d int64, fn func()) (stop func())
	// Now is the monotonic clock in nanoseconds, at most a millisecond old while the reactor is
	// busy. Reactor only.
	Now() int64
	// Clock reads the clock of Now without a cache, which takes some 50 ns. It is for measurements,
	// once per batch. Reactor only.
	Clock() int64
}

// GroupConfig is the configuration of a group.
type GroupConfig struct {
	Loop    Loop
	Handler Handler
	// Memory is the reactor's data memory, which all of its groups share.
	Memory *mem.Pool
	// Index is the index of the reactor, for the choice of completion vectors and for logs.
	Index int
}

// Group is a poll group: the part of a transport on one reactor, with its queues there.
type Group interface {
	// Poll advances at most about budget commands and returns the number of steps it made; 0 means
	// that there was nothing to do.
	Poll(budget int) int
	// Arm prepares to sleep: it enables notifications that wake the reactor (watched file
	// descriptors, completion events). It returns false if work has arrived in the meantime; the
	// reactor then polls again.
	Arm() bool
	// Adopt takes over an accepted connection. After an error the connection has been closed. Any
	// goroutine may call it.
	Adopt(c Conn) error
	// Load is the number of queues that are not known to be admin queues, including queues that are
	// being accepted. It decides on which reactor a new connection is placed. Any goroutine may
	// call it.
	Load() int
	// Shutdown disconnects all queues and calls done when the last has ended. Reactor only.
	Shutdown(done func())
	// Close frees the resources of the group; every queue must have ended.
	Close() error
}

// Conn is an accepted connection that no group has adopted yet.
type Conn interface {
	// Info describes the connection.
	Info() *QueueInfo
	// Close refuses it.
	Close() error
}

// CPUConn is a Conn that knows a processor near to it.
type CPUConn interface {
	Conn
	// CPU is the processor on which the last packet arrived, or -1 if it is not known.
	CPU() int
}

// NodeConn is a Conn that knows a NUMA node near to it.
type NodeConn interface {
	Conn
	// Node is the NUMA node of the device, negative if it has none.
	Node() int
}

// Listener is an open NVMe port.
type Listener interface {
	// Addr is the address listened on, with the real port if 0 was asked for.
	Addr() Addr
	// Close stops accepting. Connections that were accepted stay open.
	Close() error
}
