package roce

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// Limits of a queue pair.
const (
	// maxReads is the largest number of READs that a queue pair issues or answers at once.
	maxReads = 128
	// burst is the number of packets that a queue pair sends before others get their turn: the data
	// and the responses of many small commands.
	burst = 128
	// maxWaits is the number of turns that an ACK waits for requests to share their send.
	maxWaits = 3
)

type state int32

const (
	stateInit      state = iota // receives may be posted
	stateReady                  // connected, in both directions (RTS)
	stateError                  // everything is flushed
	stateDestroyed              // no method is called anymore
)

// A QP is a queue pair. PostSend and PostRecv may run in one goroutine each while another one holds
// the engine: they write after the tail of a ring, and the holder reads before it. The rest is
// used only by the goroutine that holds the engine.
type QP struct {
	engine.Base
	psn   uint32
	state atomic.Int32

	path    wire.Path
	shareAt time.Duration // when packets may share sends again
	mtu     uint32
	peerQPN uint32

	onFirst, onFatal func()

	requester requester
	responder responder
	lastCNP   time.Duration
	sendCNP   bool

	stats *Stats
}

// A Peer is the other side of a connection, and how to talk to it.
type Peer struct {
	Path     wire.Path
	QPN, PSN uint32
	// ResponderResources bounds the RDMA READs to serve at once, InitiatorDepth the ones to issue.
	ResponderResources, InitiatorDepth uint8
	// AckTimeout is the time after which a packet is sent again: 4.096 µs << n.
	AckTimeout           uint8
	RetryCount, RNRRetry uint8
	// MinRNRTimer is the code of the time that the peer waits when it finds no receive; 0 is 655
	// ms.
	MinRNRTimer uint8
	// First and Fatal, unless they are nil, are called once: when the first valid packet of the
	// peer has arrived, and when the queue pair fails by itself. They neither block nor call it.
	First, Fatal func()
}

// Stats counts the events of all queue pairs of a device.
type Stats struct {
	Retransmissions atomic.Uint64 // times a requester went back, for any reason
	Timeouts        atomic.Uint64 // of them, because no acknowledgment came
	OutOfOrder      atomic.Uint64 // requests with a later PSN than expected
	Duplicates      atomic.Uint64 // requests with an earlier PSN
	RNRSent         atomic.Uint64 // NAKs because no receive was posted
	RNRReceived     atomic.Uint64
	CNPSent         atomic.Uint64
	CNPReceived     atomic.Uint64
	// Unsegmented counts connections with packets that no longer share sends (UDP_SEGMENT), because
	// only single ones arrived.
	Unsegmented atomic.Uint64
	// Ignored counts packets that do not belong to the connection or its state: another source,
	// an acknowledgment of something not sent, READ responses nobody asked for.
	Ignored atomic.Uint64
}

// New makes a queue pair of a protection domain. Both completion queues belong to one engine. stats
// counts its events; queue pairs may share it, and nil counts nothing.
func New(pd verbs.PD, init verbs.QPInit, stats *Stats) (*QP, error) {
	q := &QP{stats: cmp.Or(stats, new(Stats))}
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // never fails
	q.responder.expected = firstSeq(binary.BigEndian.Uint32(psn[:]))
	q.psn = q.responder.expected.psn()
	if err := q.Create(q, pd, init); err != nil {
		return nil, err
	}
	q.requester.Init(init)
	return q, nil
}

// PSN returns the PSN of the first packet that the peer shall send: the communication manager tells
// it (Starting PSN, section 12.7.31).
func (q *QP) PSN() uint32 { return q.psn }

// Connect implements cm.QP. The queue pair sends and receives from now on.
func (q *QP) Connect(p Peer) (err error) {
	if p.Path.MTU < 256 || p.Path.MTU > 4096 || p.Path.MTU&(p.Path.MTU-1) != 0 {
		return fmt.Errorf("connect queue pair: path MTU %d: %w", p.Path.MTU, unix.EINVAL)
	}
	q.Eng.Do(func() {
		if q.load() != stateInit {
			err = fmt.Errorf("connect queue pair: it is connected already, or failed: %w",
				unix.EINVAL)
			return
		}
		q.onFirst, q.onFatal = p.First, p.Fatal
		q.path, q.mtu, q.peerQPN = p.Path, uint32(p.Path.MTU), p.QPN&packet.PSNMask
		q.path.Segment = !q.Dev.SendsSingly(p.Path.Remote)
		q.shareAt = q.Eng.Now() + engine.SingleTime
		q.requester.connect(&p, q.mtu)
		q.responder.connect(&p)
		q.state.Store(int32(stateReady))
		q.Eng.Schedule(&q.Handle)
	})
	return err
}

// ShortenRNRTimer implements verbs.QP.
func (q *QP) ShortenRNRTimer() (err error) {
	q.Eng.Do(func() {
		if q.load() != stateReady {
			err = fmt.Errorf("shorten RNR timer: the queue pair is not connected: %w", unix.EINVAL)
			return
		}
		q.responder.rnrTimer = shortRNR
	})
	return err
}

// ToError implements verbs.QP. An ACK that was put off is sent, and nothing from then on.
func (q *QP) ToError() error {
	q.Eng.Do(func() {
		q.responder.failed = 0
		if q.load() == stateReady && q.responder.ack {
			q.acknowledge(packet.AckNoCredits, q.responder.acked)
		}
		q.toError()
	})
	return nil
}

// Destroy implements verbs.QP. It is called once.
func (q *QP) Destroy() error {
	return q.End(func() {
		q.rewind() // returns what it has reserved
		q.state.Store(int32(stateDestroyed))
		q.onFirst, q.onFatal = nil, nil
	})
}

func (q *QP) load() state { return state(q.state.Load()) }

// toError goes to the error state and completes everything posted as flushed, in order.
func (q *QP) toError() {
	if s := q.load(); s == stateError || s == stateDestroyed {
		return
	}
	q.state.Store(int32(stateError))
	q.Eng.SetDeadline(&q.Handle, 0)
	q.Eng.ForgetReads(&q.Handle)
	q.rewind()
	q.flush()
	if q.Own == nil {
		q.Dev.Raise(verbs.AsyncEvent{Type: verbs.AsyncQPLastWQEReached, QPNum: q.Num()})
	}
}

// fatal goes to the error state because of an error.
func (q *QP) fatal() {
	q.toError()
	if fn := q.onFatal; fn != nil {
		q.onFatal = nil
		fn()
	}
}

// flush completes everything posted in the error state.
func (q *QP) flush() {
	q.flushSends()
	q.FlushRecvs(q.responder.message == messageSend)
	q.responder.message = messageNone
}

// Receive implements engine.Endpoint. A packet that does not belong to the connection is silently
// dropped (section 9.6.1).
func (q *QP) Receive(p *wire.Packet, h *packet.Header) {
	s := q.load()
	if s != stateReady && (s != stateError || q.responder.failed == 0) {
		return
	}
	if !same(p.Remote.Addr(), q.path.Remote) || !same(p.Local.Addr(), q.path.Local) ||
		h.PKey&0x7fff != packet.PKeyDefault&0x7fff || len(h.Payload) > int(q.mtu) {
		q.stats.Ignored.Add(1)
		return
	}
	if p.CE {
		q.congested()
	}
	switch {
	case h.Kind == packet.KindCNP:
		q.stats.CNPReceived.Add(1)
		q.requester.slowDown()
	case !h.Opcode.RC():
		q.stats.Ignored.Add(1)
	case !h.Opcode.Response():
		q.request(h)
	case s != stateReady:
	case h.Kind == packet.KindAck:
		q.acknowledgment(h)
	case h.Kind == packet.KindReadResponse:
		q.readResponse(h)
	default:
		q.stats.Ignored.Add(1)
	}
}

// same compares addresses without their zones, which only one of them may have.
func same(a, b netip.Addr) bool {
	return a == b || a.Unmap().WithZone("") == b.Unmap().WithZone("")
}

// cnpInterval is the shortest time between two CNPs of a queue pair.
const cnpInterval = 50 * time.Microsecond

// congested answers a packet that a router has marked (section A17.9.3).
func (q *QP) congested() {
	if now := q.Eng.Now(); q.lastCNP == 0 || now-q.lastCNP >= cnpInterval {
		q.lastCNP, q.sendCNP = now, true
	}
}

// Run implements engine.Endpoint: responses first, because the peer waits for them with its
// resources occupied, then requests.
func (q *QP) Run() (again bool) {
	if q.Overrun && q.load() == stateReady {
		q.fatal()
	}
	switch q.load() {
	case stateReady:
	case stateError:
		q.flush() // work requests posted since
		if q.responder.failed == 0 {
			return false
		}
	default:
		return false
	}
	left := burst
	if q.sendCNP && !q.cnp() || !q.respond(&left) {
		return true
	}
	if q.load() != stateReady {
		return false
	}
	return q.transmitAndAck(left)
}

// transmitAndAck sends requests and then the ACK, a short packet that can share the last send of
// the requests. So, if another turn comes soon, the ACK waits a few turns for the end of the
// requests, and for responses to the peer. It is sent before several long requests, which
// share no send with it: the peer may have no room for them before its response is acknowledged.
func (q *QP) transmitAndAck(left int) (again bool) {
	r := &q.responder
	if !r.ack {
		return q.transmit(left)
	}
	if left == 0 {
		return true
	}
	if q.requester.longSends() {
		return !q.acknowledge(packet.AckNoCredits, r.acked) || q.transmit(left-1)
	}
	next := q.requester.next
	again = q.transmit(left - 1)
	if q.load() != stateReady {
		return again
	}
	alone := q.requester.next == next
	if r.waited < maxWaits && (again || alone && q.Eng.Polled()) {
		r.waited++
		return true
	}
	return !q.acknowledge(packet.AckNoCredits, r.acked) || again
}

// Expire implements engine.Endpoint.
func (q *QP) Expire() {
	if q.load() == stateReady {
		q.expire()
	}
}

// alloc returns room for a packet with n bytes of payload, after writing its BTH; the padding is
// zeroed. The extended headers begin at packet.BTHSize and the payload at the opcode's HeaderSize.
// It returns nil if there is no room.
func (q *QP) alloc(op packet.Opcode, psn uint32, ackReq bool, n int) []byte {
	size := op.HeaderSize()
	b := q.Eng.Conn().Alloc(&q.path, size+n+packet.Pad(n))
	if b == nil {
		return nil
	}
	h := packet.BTH{
		Opcode: op, MigReq: true, Pad: uint8(packet.Pad(n)), PKey: packet.PKeyDefault,
		QPN: q.peerQPN, PSN: psn, AckReq: ackReq, BECN: op == packet.CNP,
	}
	h.Put(b)
	clear(b[size+n:])
	return b
}

// cnpPayload is the number of reserved bytes in a CNP.
const cnpPayload = 16

func (q *QP) cnp() bool {
	b := q.alloc(packet.CNP, 0, false, cnpPayload)
	if b == nil {
		return false
	}
	clear(b[packet.BTHSize:])
	q.sendCNP = false
	q.stats.CNPSent.Add(1)
	return true
}

// gather copies the pieces to a packet.
func (q *QP) gather(to []byte) {
	for _, b := range q.Pieces {
		to = to[copy(to, b):]
	}
}

// scatter copies a payload to the pieces.
func (q *QP) scatter(from []byte) {
	for _, b := range q.Pieces {
		from = from[copy(b, from):]
	}
}
