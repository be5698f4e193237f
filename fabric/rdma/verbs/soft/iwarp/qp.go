package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// MaxMessage is the largest message in bytes.
const MaxMessage = 1 << 30

type state int32

const (
	stateInit      state = iota // receives may be posted
	stateReady                  // connected
	stateError                  // everything is flushed
	stateDestroyed              // no method is called anymore
)

// A QP is a queue pair. PostSend and PostRecv may each run in one goroutine while another one holds
// the engine: they write behind the tail of a ring, and the holder reads before it. Only the
// goroutine that holds the engine uses everything else.
type QP struct {
	engine.Handle
	dev      *engine.Device
	eng      *engine.Engine
	lane     *lane
	pd       *engine.PD
	scq, rcq *engine.CQ
	rq       *engine.RecvRing
	holds    []holder
	num      uint32
	state    atomic.Int32

	fd       int // -1 without a socket
	peer     mpa.Peer
	readable bool // the socket may have bytes
	writable bool // it may take bytes
	hungUp   bool // the stream has ended or failed
	overrun  bool // a completion queue has failed
	moved    int  // bytes of the turn, and fpduCost for each FPDU

	pieces [][]byte // the memory of a payload, see locate

	sendQueue
	transmitter
	receiver

	stats *Stats
}

// Stats counts the events of all queue pairs of a device.
type Stats struct {
	SentFPDUs, ReceivedFPDUs           atomic.Uint64
	SentTerminates, ReceivedTerminates atomic.Uint64
	BadCRC                             atomic.Uint64
	// Blocked counts the sends that the socket did not take entirely.
	Blocked atomic.Uint64
}

// New makes a queue pair of a protection domain. Both completion queues must belong to one engine.
// stats counts its events; queue pairs may share it.
func New(w *Network, d *engine.Device, pd *engine.PD, init verbs.QPInit, stats *Stats) (
	*QP, error,
) {
	scq, ok1 := init.SendCQ.(*engine.CQ)
	rcq, ok2 := init.RecvCQ.(*engine.CQ)
	attr := d.Attr()
	switch {
	case !ok1 || !ok2 || scq.Engine() != rcq.Engine():
		return nil, fmt.Errorf("create queue pair: both completion queues must be of this "+
			"device and have the same vector: %w", unix.EINVAL)
	case init.SRQ != nil:
		return nil, fmt.Errorf("create queue pair: iWARP has no shared receive queues: %w",
			unix.EINVAL)
	case init.MaxSendWR < 0 || init.MaxSendWR > attr.MaxQPWR || init.MaxRecvWR < 0 ||
		init.MaxRecvWR > attr.MaxQPWR || init.MaxSendSGE < 0 || init.MaxSendSGE > attr.MaxSGE ||
		init.MaxRecvSGE < 0 || init.MaxRecvSGE > attr.MaxSGE:
		return nil, fmt.Errorf("create queue pair: %d send and %d receive work requests with %d "+
			"and %d elements, the device has %d with %d: %w", init.MaxSendWR, init.MaxRecvWR,
			init.MaxSendSGE, init.MaxRecvSGE, attr.MaxQPWR, attr.MaxSGE, unix.EINVAL)
	}
	q := &QP{
		dev: d, eng: scq.Engine(), lane: w.lanes[scq.Engine().Index()], pd: pd, scq: scq, rcq: rcq,
		fd: -1, stats: stats,
	}
	q.pieces = make([][]byte, 0, max(init.MaxSendSGE, len(verbs.RecvWR{}.SGE)))
	q.sendQueue.init(init)
	var err error
	if q.rq, err = engine.NewRecvRing(init.MaxRecvWR, init.MaxRecvSGE); err != nil {
		return nil, fmt.Errorf("create queue pair: %w", err)
	}
	for _, h := range []holder{pd, scq, rcq} {
		if err = h.Hold(); err != nil {
			q.release()
			return nil, fmt.Errorf("create queue pair: an object of it was destroyed: %w", err)
		}
		q.holds = append(q.holds, h)
	}
	q.eng.Do(func() { q.num, err = q.eng.Attach(q) })
	if err != nil {
		q.release()
		return nil, fmt.Errorf("create queue pair: %w", err)
	}
	return q, nil
}

// A holder is an object that cannot be destroyed while the queue pair uses it.
type holder interface {
	Hold() error
	Release()
}

func (q *QP) release() {
	for _, h := range q.holds {
		h.Release()
	}
	q.holds = nil
}

// Num implements verbs.QP.
func (q *QP) Num() uint32 { return q.num }

// MaxInline implements verbs.QP: inline data is not offered.
func (q *QP) MaxInline() int { return 0 }

// ShortenRNRTimer implements verbs.QP: iWARP has no such timer.
func (q *QP) ShortenRNRTimer() error { return unix.EOPNOTSUPP }

// Connect implements mpa.QP.
func (q *QP) Connect(p mpa.Peer) (err error) {
	q.eng.Do(func() {
		if q.load() != stateInit {
			err = fmt.Errorf("connect queue pair: it is connected already, or failed: %w",
				unix.EINVAL)
			return
		}
		if err = q.lane.Add(p.FD, q); err != nil {
			return
		}
		q.fd, q.peer, q.writable = p.FD, p, true
		q.transmitter.connect(q.fd, &p)
		q.receiver.connect(&p)
		q.state.Store(int32(stateReady))
		if p.Active {
			q.sendRTR(p.RTR)
		}
		q.eng.Schedule(&q.Handle)
	})
	return err
}

// Ready implements wire.StreamSocket.
func (q *QP) Ready(events uint32) {
	q.readable = q.readable || events&^unix.EPOLLOUT != 0
	q.writable = q.writable || events&unix.EPOLLOUT != 0
	q.hungUp = q.hungUp || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	q.eng.Schedule(&q.Handle)
}

// ToError implements verbs.QP. The queue pair sends nothing from then on, and the connection ends.
func (q *QP) ToError() error {
	q.eng.Do(func() { q.toError(true) })
	return nil
}

// Destroy implements verbs.QP. It is called once.
func (q *QP) Destroy() error {
	q.eng.Do(func() {
		q.leave(true)
		q.eng.Detach(q.num)
		q.state.Store(int32(stateDestroyed))
	})
	q.release()
	return nil
}

func (q *QP) load() state { return state(q.state.Load()) }

// leave gives the socket back; for drain see mpa.Peer.
func (q *QP) leave(drain bool) {
	if q.fd >= 0 {
		q.lane.Remove(q.fd)
		q.fd = -1
		q.peer.Ended(drain)
	}
}

// toError goes to the error state and completes everything posted as flushed, in order.
func (q *QP) toError(drain bool) {
	if s := q.load(); s == stateError || s == stateDestroyed {
		return
	}
	q.state.Store(int32(stateError))
	q.flush()
	q.leave(drain)
}

// terminate tells the peer its error, unless the socket has a part of an FPDU, and fails the queue
// pair.
func (q *QP) terminate(why reason) {
	if q.partial == 0 {
		var b [untaggedSize + 4 + maxHeader + maxTrailer]byte
		h := header{op: opTerminate, last: true, queue: queueTerminate, msn: 1}
		body := binary.BigEndian.AppendUint32(b[:untaggedSize], uint32(why)<<16)
		if q.have >= taggedSize && why>>12 != 2 && why != badOpcode {
			// The header of the segment: its length, DDP and RDMAP (bits M, D and R).
			bits := uint32(0xc000)
			if q.seg.op == opReadRequest {
				bits = 0xe000
			}
			binary.BigEndian.PutUint32(body[untaggedSize:], uint32(why)<<16|bits)
			body = append(body, q.header[:q.have]...)
		}
		h.n = uint32(len(body) - untaggedSize)
		h.put(b[:])
		n := len(body)
		n += putTrailer(b[n:], n, crc(q.peer.CRC, 0, b[:n]), q.peer.CRC)
		_, _ = sys.Send(q.fd, b[:n], 0) // without it the peer only sees the end
		q.stats.SentTerminates.Add(1)
	}
	q.toError(true)
}

// flush completes everything posted, as flushed.
func (q *QP) flush() {
	q.flushSends()
	if q.inSend {
		q.inSend = false
		q.completeRecv(verbs.WC{Status: verbs.WCWRFlushErr})
	}
	for q.rq.Take(&q.recv) {
		q.completeRecv(verbs.WC{Status: verbs.WCWRFlushErr})
	}
}

// badWCOpcode is the opcode of failed completions, where it has no meaning.
const badWCOpcode verbs.WCOpcode = 0xbad

// completeRecv completes the receive taken last.
func (q *QP) completeRecv(wc verbs.WC) {
	wc.WRID, wc.QPNum, wc.Opcode = q.recv.WRID, q.num, verbs.WCRecv
	if wc.Status != verbs.WCSuccess {
		wc.Opcode = badWCOpcode
	}
	q.complete(q.rcq, &wc)
}

// complete adds a completion to a queue. If the queue has failed, the queue pair fails as well,
// when it runs.
func (q *QP) complete(cq *engine.CQ, wc *verbs.WC) {
	if !cq.Push(wc) && q.load() == stateReady {
		q.overrun = true
		q.eng.Schedule(&q.Handle)
	}
}

// fpduCost is the number of bytes that an FPDU counts as besides its own: about as many are copied
// in the time that it takes.
const fpduCost = 1 << 10

// Run implements engine.Endpoint.
func (q *QP) Run() (again bool) {
	q.moved = 0
	if q.overrun {
		q.toError(true)
	}
	if q.load() == stateReady {
		again = q.receive()
	}
	switch q.load() {
	case stateReady:
		again = q.transmit() || again
	case stateError:
		q.flush() // work requests posted since
	}
	q.eng.Moved(q.moved / fpduCost)
	return again && q.load() == stateReady
}

// Receive and Expire implement engine.Endpoint and are never called.
func (q *QP) Receive(*wire.Packet, *packet.Header) {}
func (q *QP) Expire()                              {}

// locate finds the bytes [off, off+n) of the elements and keeps them in pieces. It reports whether
// the keys allow the access and the elements have these bytes. It is called for each segment,
// because a region may be deregistered in between.
func (q *QP) locate(sges []verbs.SGE, off, n uint32, need verbs.Access) bool {
	q.pieces = q.pieces[:0]
	for i := 0; i < len(sges) && n > 0; i++ {
		s := sges[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		s.Addr += uint64(off)
		s.Length = min(n, s.Length-off)
		b, ok := q.dev.Local(q.pd, s, need)
		if !ok {
			return false
		}
		q.pieces = append(q.pieces, b)
		n, off = n-s.Length, 0
	}
	return n == 0
}

// locateRemote is locate for memory that the peer names.
func (q *QP) locateRemote(stag uint32, to uint64, n uint32, need verbs.Access) bool {
	b, ok := q.dev.Remote(q.pd, stag, to, n, need)
	q.pieces = append(q.pieces[:0], b)
	return ok
}

func random32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
