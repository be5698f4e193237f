package host

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// MaxQueueSize is the largest queue: the command identifier holds the slot in its lower 12 bits and
// a generation above, so that a response for an earlier use of the slot is recognised.
const MaxQueueSize = 4096

const slotBits = 12

// slot is one command of a queue.
type slot struct {
	sqe      *nvme.SQE
	data     []byte
	token    uint64
	cid      uint16
	dir      direction
	busy     bool
	raw      bool
	blocks   int    // data blocks that the data is described with, see Op
	capsuled bool   // the data travels in the capsule
	moved    uint32 // bytes of data received, or asked for by R2Ts
	key      uint32 // RDMA: the key to be invalidated by the response, 0 if none

	// TCP: the part of the data that an R2T has asked for and that is not built into PDUs yet.
	r2tOff, r2tLeft uint32
	r2tTag          uint16
}

// Queue is one submission and completion queue pair over its own connection. One goroutine at a
// time uses it, apart from Close.
type Queue struct {
	link  link
	id    uint16
	size  int  // entries of the submission queue
	flow  bool // SQ flow control is on
	slots []slot
	free  []uint16

	done     []Completion // finished, not polled yet
	doneHead int

	capsule int // data bytes that fit into a command capsule

	submitted uint64 // commands submitted
	consumed  uint64 // commands the controller says it has taken (SQHD)

	err error
}

func newQueue(l link, id uint16, size, capsule int) *Queue {
	n := max(size-1, 1) // one entry stays free, as in a ring that tells full from empty
	q := &Queue{
		link: l, id: id, size: size, flow: true, slots: make([]slot, n),
		free: make([]uint16, n), capsule: capsule,
	}
	q.done = make([]Completion, 0, n)
	for i := range q.slots {
		q.slots[i].sqe = l.sqe(i)
		q.slots[i].cid = uint16(i)
		q.free[i] = uint16(n - 1 - i)
	}
	return q
}

// ID is the queue identifier; 0 is an admin queue.
func (q *Queue) ID() uint16 { return q.id }

// Depth is the largest number of commands outstanding.
func (q *Queue) Depth() int { return len(q.slots) }

// Free is the number of commands that can be submitted now.
func (q *Queue) Free() int { return len(q.slots) - q.Outstanding() }

// Outstanding is the number of commands submitted and not yet returned by Poll.
func (q *Queue) Outstanding() int { return len(q.slots) - len(q.free) + len(q.done) - q.doneHead }

// Err is why the queue is dead, nil while it lives.
func (q *Queue) Err() error { return q.err }

// Submit builds a command and returns its CID. It is sent by the next Poll at the latest. ErrFull
// asks for a Poll first. It does not allocate.
func (q *Queue) Submit(op *Op) (uint16, error) {
	if q.err != nil {
		return 0, q.err
	}
	if q.Outstanding() >= len(q.slots) {
		return 0, ErrFull
	}
	i := q.free[len(q.free)-1]
	s := &q.slots[i]
	s.data, s.token, s.raw, s.blocks = op.Data, op.Token, op.Raw, op.Blocks
	s.moved, s.r2tLeft, s.key, s.capsuled = 0, 0, 0, false
	*s.sqe = op.SQE
	s.dir = directionOf(s.sqe)
	if len(s.data) == 0 {
		s.dir = noData
	}
	s.cid += 1 << slotBits
	s.sqe.SetCID(s.cid)
	if !op.Raw {
		s.sqe.SetFlags(1 << 6) // PSDT 01b: SGL, as over fabrics always (Base section 4.1.1)
	}
	if err := q.link.describe(s, int(i), q.capsule); err != nil {
		return 0, err
	}
	if err := q.link.submit(q, int(i)); err != nil {
		return 0, q.fail(err)
	}
	q.free = q.free[:len(q.free)-1]
	s.busy = true
	q.submitted++
	return s.cid, nil
}

// Poll sends what Submit built, takes what has arrived and fills done with finished commands. It
// returns how many, and an error once the queue is dead and every completion that came before has
// been returned. It does not block or allocate.
func (q *Queue) Poll(done []Completion) (int, error) {
	q.done, q.doneHead = q.done[:copy(q.done, q.done[q.doneHead:])], 0
	if q.err == nil {
		if err := q.link.poll(q); err != nil {
			_ = q.fail(err)
		}
	}
	n := copy(done, q.done)
	q.doneHead = n
	if n == 0 && q.err != nil {
		return 0, q.err
	}
	return n, nil
}

// Wait blocks until Poll may have something to do or d has passed.
func (q *Queue) Wait(d time.Duration) error {
	if q.err != nil || len(q.done) > q.doneHead {
		return q.err
	}
	return q.link.wait(q, -1, d)
}

// Close ends the connection. Outstanding commands are lost; their data may be reused. Harmless when
// repeated.
func (q *Queue) Close() error {
	_ = q.fail(ErrClosed)
	return q.link.close()
}

func (q *Queue) fail(err error) error {
	if q.err == nil {
		q.err = fmt.Errorf("queue %d: %w", q.id, err)
	}
	return q.err
}

func (q *Queue) violation(format string, a ...any) error {
	return &Violation{QID: q.id, What: fmt.Sprintf(format, a...)}
}

// find returns the outstanding command that a CID names.
func (q *Queue) find(cid uint16) (*slot, int) {
	i := int(cid & (1<<slotBits - 1))
	if i >= len(q.slots) || !q.slots[i].busy || q.slots[i].cid != cid {
		return nil, 0
	}
	return &q.slots[i], i
}

// complete takes a completion queue entry from the wire. sqhd is false if it says nothing
// about the submission queue, or that has been judged.
func (q *Queue) complete(cqe *nvme.CQE, sqhd bool) error {
	s, i := q.find(cqe.CID())
	if s == nil {
		return q.violation("completion of CID %#x, which is not outstanding: % x", cqe.CID(),
			cqe[:])
	}
	if err := q.check(s, cqe); err != nil {
		return err
	}
	if sqhd {
		if err := q.judgeHead(s, cqe); err != nil {
			return err
		}
	}
	q.done = append(q.done, Completion{Token: s.token, CQE: *cqe})
	s.busy, s.data = false, nil
	q.free = append(q.free, uint16(i))
	return nil
}

// check judges a completion against its command.
func (q *Queue) check(s *slot, cqe *nvme.CQE) error {
	st := cqe.Status()
	n := uint32(len(s.data))
	switch {
	case cqe[14]&1 != 0:
		return q.violation("CID %#x: the phase tag is reserved over fabrics", s.cid)
	case cqe[10]|cqe[11] != 0:
		return q.violation("CID %#x: the SQ identifier is reserved over fabrics", s.cid)
	case cqe.Result()&^resultMask(q.id, s.sqe, st) != 0:
		return q.violation("CID %#x, opcode %#x, %v: result %#x where there is none", s.cid,
			s.sqe.Opcode(), st, cqe.Result())
	case !st.OK() && isConnect(s.sqe) && !s.raw &&
		(st.Code() == nvme.InvalidField || st&nvme.More != 0):
		// Base section 6.3: a refused Connect never says so, and never makes an entry of the error
		// log.
		return q.violation("CID %#x: Connect refused with %#x", s.cid, uint16(st))
	case s.raw || !st.OK():
		return nil
	case s.dir == toHost && s.moved != n && q.link.countsData():
		return q.violation("CID %#x: success with %d of %d bytes sent", s.cid, s.moved, n)
	case s.dir == toCtrl && s.moved != n && !s.capsuled && q.link.countsData():
		return q.violation("CID %#x: success with %d of %d bytes asked for", s.cid, s.moved, n)
	case s.r2tLeft != 0:
		return q.violation("CID %#x: success while %d bytes of an R2T are outstanding", s.cid,
			s.r2tLeft)
	}
	return nil
}

func isConnect(s *nvme.SQE) bool {
	return s.Opcode() == nvme.FabricsOpcode && s.FabricsType() == nvme.FabricsConnect
}

// resultMask is the part of DW0 and DW1 that a completion may use: what a command does not define
// is reserved and must not carry what the controller's memory held before (Base section 4.2.1).
func resultMask(qid uint16, s *nvme.SQE, st nvme.Status) uint64 {
	const dw0, all = 1<<32 - 1, 1<<64 - 1
	code, typ := s.Opcode(), s.FabricsType()
	switch {
	case isConnect(s):
		return dw0 // the controller, or what is invalid
	case !st.OK():
		return 0
	case code == nvme.FabricsOpcode && typ == nvme.FabricsPropertyGet:
		return all
	case code == nvme.FabricsOpcode || qid != 0:
		return 0
	case code == nvme.AdminSetFeatures, code == nvme.AdminGetFeatures, code == nvme.AdminAbort,
		code == nvme.AdminAsyncEventReq:
		return dw0
	}
	return 0
}

// judgeHead judges the SQHD of a response as it arrives; that to a refused Connect has none.
func (q *Queue) judgeHead(s *slot, cqe *nvme.CQE) error {
	if isConnect(s.sqe) && !cqe.Status().OK() {
		return nil
	}
	return q.checkHead(cqe.SQHD())
}

// checkHead judges SQHD (Base section 3.3.2.6): it moves forward only, never past what was
// submitted, within the queue.
func (q *Queue) checkHead(sqhd uint16) error {
	if !q.flow {
		if sqhd != 0xFFFF {
			return q.violation("SQHD %#x though SQ flow control is off", sqhd)
		}
		return nil
	}
	if int(sqhd) >= q.size {
		return q.violation("SQHD %d in a queue of %d entries", sqhd, q.size)
	}
	last := int(q.consumed % uint64(q.size))
	step := (int(sqhd) - last + q.size) % q.size
	if q.consumed+uint64(step) > q.submitted {
		return q.violation("SQHD %d: %d commands taken, %d were submitted", sqhd, q.consumed+
			uint64(step), q.submitted)
	}
	q.consumed += uint64(step)
	return nil
}
