package rdma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// queue is one queue pair. It belongs to the reactor of its group, except where a comment says
// otherwise.
type queue struct {
	g    *group
	p    *port
	cq   *cq
	conn *conn
	qp   verbs.QP

	number  uint16 // in g.slots
	gen     uint32
	state   queueState
	session fabric.Session
	opened  bool // Handler.Open succeeded
	joined  bool // Connect succeeded

	// The registered memory: depth capsules, depth responses, and on I/O queues depth pages-aligned
	// areas of in-capsule data.
	region    *mem.Region
	mr        verbs.MR
	key       uint32
	base      uint64 // address of the region
	responses int    // offset of the first response
	inCapsule int    // offset of the first area of in-capsule data
	stride    int    // from one area to the next
	icd       int    // bytes of in-capsule data per capsule, 0 on the admin queue
	inline    bool   // responses are sent inline

	reqs []request

	// shared is where capsules come from if the queue has no receives of its own. Then reqs that no
	// capsule has are on idle, capsules have no request yet, taken is the number of commands
	// without a response, and last says that the queue pair takes no more receives.
	shared   *shared
	idle     list
	capsules []arrival
	taken    int
	last     bool

	// Credits. sqSize is the size of the send queue, slots what is free of it; reads and sends are
	// RDMA READs and responses that may be put in flight now.
	sqSize, slots int
	reads, sends  int
	maxReads      int
	// posted and signalled are receives and signalled sends that have not completed; the queue pair
	// is drained when both are 0.
	posted, signalled int
	executing         int // requests the handler has

	out      list // completed requests
	needRead list // requests whose data is to be read
	dirty    bool // on g.dirty

	why      error  // why the queue ends, once it does
	failed   bool   // it must end now
	flushed  bool   // the queue pair is in the error state
	stop     func() // the timer of the present state, nil if it has none
	progress uint64
	seen     uint64 // progress at the last look
	stuckBy  int64  // when the queue counts as stuck, 0 if nothing is in flight

	// cm is held by ordinary goroutines while they call the connection's identifier and queue pair.
	cm       sync.Mutex
	accepted bool
	ended    bool
}

// build makes the memory and the queue pair of a connection; free undoes it. Not on a reactor. The
// completion queue and shared receives are there.
func (q *queue) build() (err error) {
	c, attr := q.conn, &q.p.dev.attr
	q.reads, q.sends = min(c.reads, max(attr.MaxQPInitRdAtom, 1)), c.credits
	q.maxReads = q.reads
	defer func() {
		if err != nil {
			err = errors.Join(err, q.free())
		}
	}()
	q.icd = c.inCapsule()
	if err = q.layout(); err != nil {
		return err
	}
	init := verbs.QPInit{
		SendCQ: q.cq.CQ, RecvCQ: q.cq.CQ, MaxSendWR: q.sqSize, MaxSendSGE: q.p.sendSGE,
		MaxRecvSGE: 1, MaxInline: responseSize,
	}
	if q.icd > 0 {
		init.MaxRecvSGE = 2
	}
	if q.shared != nil {
		init.SRQ = q.shared.srq
	} else {
		init.MaxRecvWR = c.depth
	}
	if q.qp, err = c.id.CreateQP(q.p.dev.pd, init); err != nil {
		return fmt.Errorf("queue pair of %d sends and %d receives: %w", q.sqSize, init.MaxRecvWR,
			err)
	}
	q.inline = q.qp.MaxInline() >= responseSize
	return nil
}

// layout maps and registers the memory of capsules and responses and makes the requests. The device
// writes capsules there and nobody else can: LOCAL_WRITE only.
func (q *queue) layout() (err error) {
	depth := q.conn.depth
	q.responses = depth * capsuleSize
	size := capsuleMemory(depth, q.icd)
	if q.shared != nil {
		q.responses, size = 0, depth*responseSize
		q.capsules = make([]arrival, 0, depth)
	} else if q.icd > 0 {
		q.inCapsule = roundUp(depth*(capsuleSize+responseSize), pageSize)
		q.stride = roundUp(q.icd, pageSize)
	}
	if q.region, err = mem.Map("RDMA capsules", size); err != nil {
		return err
	}
	q.g.near(q.region)
	if q.mr, err = q.p.dev.pd.RegMR(q.region.Bytes(), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("register %d bytes for capsules with %s: %w (see the memlock limit)",
			size, q.p.dev.attr.Name, err)
	}
	q.key, q.base = q.mr.LKey(), mem.Addr(q.region.Bytes())
	q.reqs = make([]request, depth)
	segs := make([]mem.Segment, depth*2) // most commands need one, some two
	for i := range q.reqs {
		r := &q.reqs[i]
		r.Queue, r.Owner, r.tag = q, r, uint16(i)
		r.Segs = segs[2*i : 2*i : 2*i+2]
		if q.shared != nil {
			q.idle.push(r)
		}
	}
	return nil
}

// capsuleMemory is the registered memory of a queue: capsules, responses, and in-capsule data page
// by page.
func capsuleMemory(depth, icd int) int {
	size := depth * (capsuleSize + responseSize)
	if icd > 0 {
		size = roundUp(size, pageSize) + depth*roundUp(icd, pageSize)
	}
	return size
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// free gives back the memory of a queue whose queue pair does not exist. Not on a reactor. Memory
// that cannot be deregistered stays mapped: the device might still use it.
func (q *queue) free() error {
	if q.mr != nil {
		if err := q.mr.Dereg(); err != nil {
			return fmt.Errorf("free the capsules of a queue: %w", err)
		}
		q.mr = nil
	}
	if q.region == nil {
		return nil
	}
	return q.region.Unmap()
}

// capsule is the memory that the command capsule of r lies in.
func (q *queue) capsule(r *request) []byte {
	if q.shared != nil {
		return q.shared.capsule(r.slot)
	}
	off := int(r.tag) * capsuleSize
	return q.region.Bytes()[off : off+capsuleSize]
}

// capsuleData is the memory that the in-capsule data of r lies in, on an I/O queue.
func (q *queue) capsuleData(r *request) []byte {
	if q.shared != nil {
		return q.shared.capsuleData(r.slot)
	}
	off := q.inCapsule + int(r.tag)*q.stride
	return q.region.Bytes()[off : off+q.icd : off+q.icd]
}

// capsuleRegion is the region that capsule and capsuleData are of.
func (q *queue) capsuleRegion(r *request) mem.RegionID {
	if q.shared != nil {
		return q.shared.chunks[r.slot/chunkSlots].region.ID()
	}
	return q.region.ID()
}

// recvWR is the receive of slot i.
func (q *queue) recvWR(i uint16) verbs.RecvWR {
	wr := verbs.RecvWR{WRID: workID(workRecv, q.gen, q.number, i), NumSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: q.base + uint64(i)*capsuleSize, Length: capsuleSize, LKey: q.key}
	if q.icd > 0 {
		wr.NumSGE = 2
		wr.SGE[1] = verbs.SGE{
			Addr:   q.base + uint64(q.inCapsule) + uint64(i)*uint64(q.stride),
			Length: uint32(q.icd), LKey: q.key,
		}
	}
	return wr
}

// Complete takes requests back from the handler. Their responses leave with the next poll of the
// group.
func (q *queue) Complete(reqs []*fabric.Request) {
	for _, fr := range reqs {
		r := fr.Owner.(*request)
		q.executing--
		if q.state >= queueDying {
			q.drop(r)
			continue
		}
		r.state, r.at = requestNeedSend, cursor{}
		q.out.push(r)
	}
	if q.state < queueDying {
		q.touch()
		return
	}
	q.finish()
}

// SetDepth is the success of Connect. The queue was made as deep as the host announced to the
// connection manager.
func (q *queue) SetDepth(depth int) error {
	if depth < 1 || depth > q.conn.depth {
		return fmt.Errorf(
			"rdma: queue of %d commands: the connection was made for at most %d (HSQSIZE+1)", depth,
			q.conn.depth)
	}
	q.joined = true
	if q.state < queueClosing {
		q.relax()
	}
	return nil
}

// Disconnect starts the orderly end of the queue. The next poll goes on with it, so that the
// handler, which may have called this, is not called from here.
func (q *queue) Disconnect(why error) {
	if q.state >= queueClosing {
		return
	}
	q.state, q.why = queueClosing, why
	q.within(q.g.t.cfg.LingerTimeout)
	q.touch()
}

// Info describes the connection.
func (q *queue) Info() *fabric.QueueInfo { return &q.conn.info }

// fail ends the queue at once, at the next poll. The first reason counts.
func (q *queue) fail(why error) {
	if q.state >= queueDying || q.failed {
		return
	}
	q.failed = true
	if q.why == nil {
		q.why = why
	}
	q.touch()
}

// touch has the queue looked at in this or the next poll.
func (q *queue) touch() {
	if !q.dirty {
		q.dirty = true
		q.g.dirty = append(q.g.dirty, q)
	}
}

var _ fabric.Queue = (*queue)(nil)
