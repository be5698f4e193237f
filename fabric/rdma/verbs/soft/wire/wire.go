package wire

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
)

// Limits of a Conn.
const (
	// Port is the destination port of every packet (section A17.3).
	Port = 4791
	// MaxBatch is the largest number of packets that Recv returns.
	MaxBatch = 64
	// MaxEngines is the largest number of engines: six bits of the QPN choose one.
	MaxEngines = 1 << (24 - engineShift)
	// engineShift is the number of bits below the engine's in a QPN.
	engineShift = 18
	// CMQPN is the queue pair of the communication manager (GSI, section 13.5).
	CMQPN = 1
)

// Steer returns the index of the socket that gets the packets to a queue pair, in Open's result for
// n engines.
func Steer(qpn uint32, n int) int {
	if qpn == CMQPN {
		return n
	}
	return int(qpn>>engineShift) % n
}

// A Network is a machine's access to one IP network: the sockets of one soft device. Any goroutine
// may call its methods.
type Network interface {
	// Open opens the sockets of the device: n for engines, 1 to MaxEngines, and one more, the last,
	// for the communication manager. Steer tells which one gets a packet. The caller closes all of
	// them. Fails if the port is taken.
	Open(n int) ([]Conn, error)
	// Addrs lists the addresses of the machine.
	Addrs() ([]netip.Addr, error)
	// Route returns the local address for a remote one and the largest RoCE path MTU in between
	// that the local interface allows: 256, 512, 1024, 2048 or 4096. The zero local address means
	// any; another one is returned if it is usable.
	Route(local, remote netip.Addr) (netip.Addr, int, error)
}

// A Conn is one socket and its transmit batch. One goroutine at a time calls its methods, except
// for FD, Wake, Now, Stats and Close, which any goroutine may call.
type Conn interface {
	// FD is an epoll descriptor. It is readable when packets have arrived, the timer is due, a
	// batch that the socket refused can go on, or Wake was called. It may also become readable for
	// no reason. Recv takes the cause away.
	FD() int
	// Wake makes FD readable until the next Recv.
	Wake()
	// Now is the time since some moment in the past.
	Now() time.Duration
	// SetTimer makes FD readable at the given time of Now. There is one timer; a call replaces the
	// time of the last one. Zero stops it.
	SetTimer(at time.Duration)
	// Recv returns packets that have arrived, at most MaxBatch, without waiting. They are valid
	// until the next Recv. An error means that the socket is of no more use.
	Recv() ([]Packet, error)
	// More reports whether the last Recv may have left packets. FD does not tell: call Recv again,
	// or Wake.
	More() bool
	// Alloc returns room for a packet from BTH to the padding, without the ICRC, at the end of the
	// batch. n is a multiple of 4 from packet.BTHSize to packet.MaxSize. The bytes are not
	// zeroed. The caller fills them before the next call of Alloc or Flush. It returns nil if the
	// batch is full and the socket does not take it now; FD becomes readable when it does. A packet
	// that cannot be sent for another reason (no route, a path of another family) is dropped and
	// counted.
	Alloc(p *Path, n int) []byte
	// Flush sends the batch. Packets that the socket does not take now stay in it; FD becomes
	// readable when it does.
	Flush()
	// ReceiveBuffer is the size of the receive buffer in bytes, as the system counts them: more
	// than the payload. Packets that find it full are lost. Any goroutine may call it.
	ReceiveBuffer() int
	// Stats returns the counters of the Conn.
	Stats() *Stats
	// Close closes the socket. Call it when no other method runs or will be called.
	Close() error
}

// A Packet is a received packet.
type Packet struct {
	Local, Remote netip.AddrPort
	// Data is the packet from BTH to the padding. The ICRC was right and is not part of it.
	Data []byte
	// CE: a router on the way marked congestion (RFC 3168, section 5).
	CE bool
}

// A Path leads to a peer. Exported fields do not change after the first Alloc, which uses only
// addresses, TOS and Segment. The zero MTU means unknown.
type Path struct {
	Local, Remote netip.Addr
	// TOS is the type of service or traffic class, with the ECN bits.
	TOS uint8
	// MTU is the RoCE path MTU: the largest payload of a packet.
	MTU int
	// Segment lets packets of one length that follow each other in the batch pass the system as
	// one (UDP_SEGMENT), a shorter one at the end. That saves most of the CPU time. Segment may
	// change at any time. Without it every packet has the identification 0 (see packet.ICRC).
	Segment bool

	route route
}

// linkHeaders is the length of everything but payload that rxe reckons with (RXE_MAX_HDR_LENGTH in
// drivers/infiniband/sw/rxe/rxe_hdr.h), so that both ends choose the same path MTU.
const linkHeaders = 80

// PathMTU returns the largest RoCE path MTU for the MTU of a link.
func PathMTU(link int) (int, error) {
	for mtu := 4096; mtu >= 256; mtu /= 2 {
		if link-linkHeaders >= mtu {
			return mtu, nil
		}
	}
	return 0, fmt.Errorf("link MTU %d is too small: RoCE needs at least %d", link, 256+linkHeaders)
}

// ECT0 in TOS allows routers to mark packets instead of losing them (RFC 3168, section 5).
const ECT0 = 2

// Stats are the counters of a Conn.
type Stats struct {
	Received, Sent atomic.Uint64
	// BadICRC counts packets with a wrong ICRC. Malformed counts datagrams that cannot be RoCEv2
	// packets: too short, too long, or with a length that is not a multiple of 4.
	BadICRC, Malformed atomic.Uint64
	// Overflows counts packets that the system lost because the receive buffer was full.
	Overflows atomic.Uint64
	// Dropped counts packets that were not sent: no route, or the system refused them.
	Dropped atomic.Uint64
	// Blocked counts the batches that the socket did not take at once.
	Blocked atomic.Uint64
	// Segmented counts packets sent together with others, Merged ones that arrived together.
	Segmented, Merged atomic.Uint64
}
