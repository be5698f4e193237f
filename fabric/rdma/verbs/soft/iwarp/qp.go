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

type state int32

const (
	stateInit      state = iota // receives may be posted
	stateReady                  // connected
	stateError                  // everything is flushed
	stateDestroyed              // no method is called anymore
)

// A QP is a queue pair. PostSend and PostRecv may each run in one goroutine while another one holds
// the engine: they write after the tail of a ring, and the holder reads before it. Only the
// goroutine that holds the engine uses everything else.
type QP struct {
	engine.Base
	engine.SendRing[sent]
	lane  *lane
	state atomic.Int32

	fd       int // -1 without a socket
	peer     mpa.Peer
	readable bool // the socket may have bytes
	writable bool // it may take bytes
	hungUp   bool // the stream has ended or failed
	moved    int  // bytes of the turn, and fpduCost for each FPDU

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
func New(w *Network, pd verbs.PD, init verbs.QPInit, stats *Stats) (*QP, error) {
	if init.SRQ != nil {
		return nil, fmt.Errorf("create queue pair: iWARP has no shared receive queues: %w",
			unix.EINVAL)
	}
	q := &QP{fd: -1, stats: stats}
	if err := q.Create(q, pd, init); err != nil {
		return nil, err
	}
	q.Init(init)
	q.lane = w.lanes[q.Eng.Index()]
	return q, nil
}

// ShortenRNRTimer implements verbs.QP: iWARP has no such timer.
func (q *QP) ShortenRNRTimer() error { return unix.EOPNOTSUPP }

// Connect implements mpa.QP.
func (q *QP) Connect(p mpa.Peer) (err error) {
	q.Eng.Do(func() {
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
		q.Eng.Schedule(&q.Handle)
	})
	return err
}

// Ready implements wire.StreamSocket.
func (q *QP) Ready(events uint32) {
	q.readable = q.readable || events&^unix.EPOLLOUT != 0
	q.writable = q.writable || events&unix.EPOLLOUT != 0
	q.hungUp = q.hungUp || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	q.Eng.Schedule(&q.Handle)
}

// ToError implements verbs.QP. The queue pair sends nothing from then on, and the connection ends.
func (q *QP) ToError() error {
	q.Eng.Do(func() { q.toError(true) })
	return nil
}

// Destroy implements verbs.QP. It is called once.
func (q *QP) Destroy() error {
	return q.End(func() {
		q.leave(true)
		q.state.Store(int32(stateDestroyed))
	})
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
	q.FlushRecvs(q.inSend)
	q.inSend = false
}

// fpduCost is the number of bytes that an FPDU counts as besides its own: about as many are copied
// in the time that it takes.
const fpduCost = 1 << 10

// Run implements engine.Endpoint.
func (q *QP) Run() (again bool) {
	q.moved = 0
	if q.Overrun {
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
	q.Eng.Moved(q.moved / fpduCost)
	return again && q.load() == stateReady
}

// Receive and Expire implement engine.Endpoint and are never called.
func (q *QP) Receive(*wire.Packet, *packet.Header) {}
func (q *QP) Expire()                              {}

// locateRemote is locate for memory that the peer names.
func (q *QP) locateRemote(stag uint32, to uint64, n uint32, need verbs.Access) bool {
	b, ok := q.Dev.Remote(q.PD, stag, to, n, need)
	q.Pieces = append(q.Pieces[:0], b)
	return ok
}

func random32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
