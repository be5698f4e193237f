package tcp

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// icReq answers the first PDU of a connection.
func (q *queue) icReq(r *pdu.ICReq) {
	if f := r.Check(); !f.OK() {
		q.fault(f, r[:])
		return
	}
	session, err := q.g.cfg.Handler.Open(q)
	if err != nil {
		q.g.t.log.Warn("connection refused", "from", q.conn.info.Remote, "error", err)
		q.Disconnect(err)
		return
	}
	q.session, q.open = session, true
	cfg := &q.g.t.cfg
	q.params.HPDA = r.HPDA()
	q.params.HeaderDigest = r.HeaderDigest() && !cfg.NoHeaderDigest
	q.params.DataDigest = r.DataDigest() && !cfg.NoDataDigest
	q.depth = initialDepth
	q.allocate(initialDepth)
	var resp pdu.ICResp
	resp.Set(&q.params)
	q.sendRaw(resp[:])
	q.state = queueLive
	q.handshakeBy = q.now() + cfg.ConnectTimeout.Nanoseconds()
}

// termReq ends the connection on the host's demand.
func (q *queue) termReq(r *pdu.TermReq) {
	f := r.Fault()
	q.g.t.log.Warn("the host ended a connection for a protocol error", "remote", q.conn.info.Remote,
		"local", q.conn.info.Local, "error", f)
	q.Disconnect(f)
}

// capsule takes a command into a request; b is what has been received behind its header. It returns
// false, having changed nothing, if there is no memory for its data. One with much data that is
// still to come is prepared ahead of it (ahead.go).
func (q *queue) capsule(c *pdu.CapsuleCmd, b []byte) bool {
	n := q.params.DataLength(c.Header())
	status, f := q.checkSGL(c, n)
	if !f.OK() {
		q.fault(f, c[:])
		return true
	}
	r := q.get()
	if r == nil {
		// More commands than the submission queue has entries (Base section 3.3.2.6): flow control
		// is lost.
		q.fault(pdu.Fault{FES: pdu.FESSequence}, c[:])
		return true
	}
	whole := len(b) >= int(n)+q.params.DataDigestSize()
	large := n >= aheadMin && status.OK()
	ahead := large && !whole
	if n > 0 && !q.room(r, int(n), whole, ahead) {
		q.free = append(q.free, r)
		q.stall(int(n), ahead)
		return false
	}
	sqe := c.SQE()
	if !q.connected && sqe.Opcode() == nvme.FabricsOpcode &&
		sqe.FabricsType() == nvme.FabricsConnect {
		if q.admin = sqe.Connect().QID() == 0; q.admin {
			q.lighten()
		}
	}
	r.SQE = *sqe
	r.Status = status
	r.InCapsule = n > 0 && !ahead
	r.ahead, q.large = ahead, large
	if status.OK() {
		r.HostLength = sqe.SGL1().Length()
	}
	r.Start = q.now()
	r.state = requestParsed
	r.whole = n == 0
	r.recvd = 0
	q.g.batch = append(q.g.batch, &r.Request)
	if n > 0 {
		q.expect(r, n)
	}
	return true
}

// checkSGL validates the descriptor of a command that carries n bytes of data. A Fault says that
// the stream cannot be trusted any more, a status that the command is refused.
func (q *queue) checkSGL(c *pdu.CapsuleCmd, n uint32) (nvme.Status, pdu.Fault) {
	sqe, sgl := c.SQE(), c.SQE().SGL1()
	// Only SGLs: PSDT is 01b (Base section 4.1.1), and Fabrics commands use SGLs whatever it says
	// (Base section 4.1.2).
	psdt := sqe.PSDT() == 1 || sqe.Opcode() == nvme.FabricsOpcode
	kind := uint8(sgl.Type())<<4 | sgl.Subtype()
	inCapsule := psdt && kind == uint8(nvme.SGLDataBlock)<<4|nvme.SGLSubtypeOffset
	switch {
	case n > q.inCapsuleMax(sqe):
		return 0, pdu.Fault{FES: pdu.FESLimit, FEI: pdu.OffPLEN}
	case inCapsule && sgl.Length() != n, !inCapsule && psdt && n > 0:
		// The length of the PDU and the SGL disagree about in-capsule data (TCP section 3.3.2).
		return 0, pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffPLEN}
	case inCapsule && n > 0 && sgl.Address() != 0:
		// ICDOFF is 0 (Base section 5.1.13.2.1)
		return 0, pdu.Fault{FES: pdu.FESUnsupported, FEI: pdu.OffSGL1}
	case !psdt:
		return nvme.InvalidField | nvme.DNR, pdu.Fault{}
	case inCapsule:
		if n > 0 && toHost(sqe) {
			return nvme.InvalidField | nvme.DNR, pdu.Fault{}
		}
	case kind == uint8(nvme.SGLTransportDataBlock)<<4|nvme.SGLSubtypeTransport: // TCP section 3.3.2
	case kind == 0 && sgl.Length() == 0: // no data
	default:
		return nvme.SGLTypeInvalid | nvme.DNR, pdu.Fault{}
	}
	return nvme.Success, pdu.Fault{}
}

// inCapsuleMax is the largest in-capsule data of a command: 8192 bytes on the admin queue and for
// Fabrics commands, IOCCSZ for others (TCP section 3.3.1, Base section 5.1.13.2.1).
func (q *queue) inCapsuleMax(sqe *nvme.SQE) uint32 {
	if q.admin || !q.connected || sqe.Opcode() == nvme.FabricsOpcode {
		return pdu.AdminInCapsule
	}
	return uint32(q.conn.info.InCapsuleSize)
}

// toHost tells from the opcode that data goes from the controller to the host only (Base section
// 4.1.1; for Fabrics commands from FCTYPE, Base section 6).
func toHost(sqe *nvme.SQE) bool {
	if sqe.Opcode() == nvme.FabricsOpcode {
		return sqe.FabricsType()&3 == 2
	}
	return sqe.Opcode()&3 == 2
}

// runBatch lets the handler judge the commands of the batch, starts their data, and executes what
// is ready.
func (g *Group) runBatch() int {
	n := len(g.batch)
	if n > 0 {
		g.cfg.Handler.Prepare(g.batch)
		for _, fr := range g.batch {
			q := fr.Queue.(*queue)
			q.prepared(fr.Owner.(*request))
		}
		clear(g.batch)
		g.batch = g.batch[:0]
		g.promised = 0
	}
	return n + g.execute()
}

// prepared goes on with a command after Prepare.
func (q *queue) prepared(r *request) {
	r.prepared = true
	switch {
	case r.ahead:
		q.placeAhead(r)
	case r.InCapsule:
		if r.whole {
			q.placeInCapsule(r)
		}
	case !r.Status.OK() || r.Dir == fabric.NoData || r.Length == 0:
		q.g.toReady(r)
	case r.ZeroCopy || len(r.Segs) > 0:
		q.start(r)
	default:
		q.g.wantMemory(r)
	}
}

// placeInCapsule executes a command that is prepared and whose in-capsule data has arrived, in
// memory of ours: unless Prepare attached memory of its own that becomes the request's. Data that
// its device takes at once stays where it was received.
func (q *queue) placeInCapsule(r *request) {
	if r.Status.OK() && r.Dir == fabric.HostToController && !r.damaged {
		switch {
		case r.CompletesInExecute && r.passing != nil && !r.ZeroCopy:
			r.Segs = append(r.Segs, mem.Segment{B: r.passing[:r.Length:r.Length]})
			q.dataInPlace(r)
			q.g.passing = true // after what was ready before has been executed, perhaps
			return
		case len(r.Segs) > 0 && r.passing != nil:
			mem.CopySegments(r.Segs, []mem.Segment{{B: r.passing}})
		case len(r.Segs) > 0:
			mem.CopySegments(r.Segs, r.own)
		default:
			if r.passing != nil {
				q.own(r, len(r.passing)) // there is room
				mem.CopySegments(r.own, []mem.Segment{{B: r.passing}})
			}
			r.Segs = mem.Slice(r.Segs, r.own, 0, int(r.Length))
		}
	}
	r.passing = nil
	q.dataInPlace(r)
}

// start goes on with a command that has memory for its data.
func (q *queue) start(r *request) {
	if r.Dir == fabric.HostToController {
		q.grant(r)
		return
	}
	q.g.toReady(r)
}

// toReady puts a request on the list for Execute.
func (g *Group) toReady(r *request) {
	if len(g.ready) == cap(g.ready) {
		g.execute()
	}
	g.ready = append(g.ready, &r.Request)
}

// execute hands all ready requests to the handler.
func (g *Group) execute() int {
	n := len(g.ready)
	if n == 0 {
		return 0
	}
	for _, fr := range g.ready {
		fr.Owner.(*request).state = requestExecuting
		fr.Queue.(*queue).executing++
	}
	ready := g.ready
	g.cfg.Handler.Execute(ready)
	if g.passing {
		g.leavePassing(ready)
	}
	clear(ready)
	g.ready = g.ready[:0]
	return n
}

// leavePassing leaves the receive buffer to requests that are executing and have their data in it,
// and takes another one. Few are: of a device that may be slow Prepare says so, as long as it has
// something to do.
func (g *Group) leavePassing(reqs []*fabric.Request) {
	g.passing = false
	left := false
	for _, fr := range reqs {
		r := fr.Owner.(*request)
		left = left || r.passing != nil && r.state == requestExecuting
		r.passing = nil
	}
	if left {
		g.rx = make([]byte, rxSize)
	}
}
