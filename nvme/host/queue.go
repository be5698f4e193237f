package host

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// MaxQueueSize is the largest number of entries: the command identifier has the slot in its lower
// 12 bits and a generation above, by which responses to earlier commands of the slot are
// recognized.
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
	blocks   int    // see Op.Blocks
	capsuled bool   // the data is in-capsule data
	moved    uint32 // bytes of data received, or requested by R2Ts

	// TCP: the data requested by an R2T and not sent yet.
	r2tOff, r2tLeft uint32
	r2tTag          uint16
	r2tNode         list.Node[slot]
}

// Queue is a submission and a completion queue over their own connection. One goroutine at a time
// uses it, apart from Close.
type Queue struct {
	link link
	id   uint16
	size int  // entries of the submission queue
	flow bool // SQ flow control is on
	// see Options
	tolerant bool
	slots    []slot
	free     []uint16

	done     []Completion // not returned by Poll yet
	doneHead int

	capsule int // in-capsule data size in bytes

	submitted uint64 // commands submitted
	consumed  uint64 // commands that the controller has fetched, according to SQHD

	err error
}

func newQueue(l link, id uint16, size, capsule int) *Queue {
	n := max(size-1, 1) // one entry stays unused: a full queue differs from an empty one
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

// Depth is the maximum number of outstanding commands.
func (q *Queue) Depth() int { return len(q.slots) }

// Free is the number of commands that can be submitted now.
func (q *Queue) Free() int { return len(q.slots) - q.Outstanding() }

// Outstanding is the number of commands submitted and not yet returned by Poll.
func (q *Queue) Outstanding() int { return len(q.slots) - len(q.free) + len(q.done) - q.doneHead }

// Err is the reason why the queue ended, nil while it works.
func (q *Queue) Err() error { return q.err }

// Submit builds a command and returns its CID. The next Poll sends it at the latest. After ErrFull
// the caller has to poll first. Submit does not allocate.
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
	s.moved, s.r2tLeft, s.capsuled = 0, 0, false
	*s.sqe = op.SQE
	s.dir = directionOf(s.sqe)
	if len(s.data) == 0 {
		s.dir = noData
	}
	s.cid += 1 << slotBits
	s.sqe.SetCID(s.cid)
	if !op.Raw {
		// PSDT 01b: SGL, always over fabrics (Base section 4.1.1)
		s.sqe.SetFlags(1<<6 | op.SQE.FUSE())
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

// Poll sends the commands that Submit built, processes everything received, and fills done with
// completed commands. It returns their number, or an error once the queue has ended and all earlier
// completions have been returned. It neither blocks nor allocates.
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

// Wait blocks until Poll may have work or d has passed.
func (q *Queue) Wait(d time.Duration) error {
	if q.err != nil || len(q.done) > q.doneHead {
		return q.err
	}
	return q.link.wait(q, -1, d)
}

// Close disconnects. Outstanding commands are lost, and their data belongs to the caller again. It
// may be called repeatedly.
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

// find returns the outstanding command with this CID, nil if there is none.
func (q *Queue) find(cid uint16) (*slot, int) {
	i := int(cid & (1<<slotBits - 1))
	if i >= len(q.slots) || !q.slots[i].busy || q.slots[i].cid != cid {
		return nil, 0
	}
	return &q.slots[i], i
}

// complete validates a completion queue entry and queues it for Poll. sqhd is false if SQHD is not
// valid or was checked before.
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
		if err := q.checkSQHD(s, cqe); err != nil {
			return err
		}
	}
	q.done = append(q.done, Completion{Token: s.token, CQE: *cqe})
	s.busy, s.data = false, nil
	q.free = append(q.free, uint16(i))
	return nil
}

// check validates a completion against its command.
func (q *Queue) check(s *slot, cqe *nvme.CQE) error {
	st := cqe.Status()
	n := uint32(len(s.data))
	switch {
	case q.tolerant:
	case cqe[14]&1 != 0:
		return q.violation("CID %#x: the phase tag is reserved over fabrics", s.cid)
	case cqe[10]|cqe[11] != 0:
		return q.violation("CID %#x: the SQ identifier is reserved over fabrics", s.cid)
	case cqe.Result()&^resultMask(q.id, s.sqe, st) != 0:
		return q.violation("CID %#x, opcode %#x, %v: result %#x in reserved fields", s.cid,
			s.sqe.Opcode(), st, cqe.Result())
	case !st.OK() && isConnect(s.sqe) && !s.raw &&
		(st.Code() == nvme.InvalidField || st&nvme.More != 0):
		// Base section 6.3: Connect has its own status codes, and creates no error log entry.
		return q.violation("CID %#x: Connect refused with %#x", s.cid, uint16(st))
	}
	switch {
	case s.r2tLeft != 0:
		return q.violation("CID %#x: %v while %d bytes of an R2T are outstanding", s.cid, st,
			s.r2tLeft)
	case s.raw || !st.OK():
		return nil
	case s.dir == toHost && s.moved != n:
		return q.violation("CID %#x: success with %d of %d bytes sent", s.cid, s.moved, n)
	case s.dir == toCtrl && s.moved != n && !s.capsuled:
		return q.violation("CID %#x: success with %d of %d bytes requested", s.cid, s.moved, n)
	}
	return nil
}

func isConnect(s *nvme.SQE) bool {
	return s.Opcode() == nvme.FabricsOpcode && s.FabricsType() == nvme.FabricsConnect
}

// resultMask is the part of DW0 and DW1 that the command defines. The rest is reserved and must not
// leak old contents of the controller's memory (Base section 4.2.1).
func resultMask(qid uint16, s *nvme.SQE, st nvme.Status) uint64 {
	const dw0, all = 1<<32 - 1, 1<<64 - 1
	code, typ := s.Opcode(), s.FabricsType()
	switch {
	case isConnect(s):
		return dw0 // the controller ID, or the invalid parameter
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

// checkSQHD validates the SQHD of a response when it arrives (Base section 3.3.2.6): it only moves
// forward, stays within the queue, and never passes the submitted commands. The response to a
// refused Connect has no SQHD.
func (q *Queue) checkSQHD(s *slot, cqe *nvme.CQE) error {
	if q.tolerant || isConnect(s.sqe) && !cqe.Status().OK() {
		return nil
	}
	sqhd := cqe.SQHD()
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
		return q.violation("SQHD %d: %d commands fetched, %d were submitted", sqhd,
			q.consumed+uint64(step), q.submitted)
	}
	q.consumed += uint64(step)
	return nil
}
