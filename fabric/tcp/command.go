package tcp

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// icReq answers the first PDU of a connection.
func (q *queue) icReq(r *pdu.IC) {
	if f := r.Check(); !f.OK() {
		q.fault(f, r[:])
		return
	}
	session, err := q.g.cfg.Handler.Open(q)
	if err != nil {
		q.peerLog().Report(event.ConnectionRefused, "err", err)
		q.Disconnect(err)
		return
	}
	q.session, q.open = session, true
	cfg := &q.g.t.cfg
	q.params.HPDA = r.PDA()
	next := q.g.t.next.Load()
	q.params.HeaderDigest = r.HeaderDigest() && !next.NoHeaderDigest
	q.params.DataDigest = r.DataDigest() && !next.NoDataDigest
	q.depth = MinQueueDepth
	resp := pdu.ICResp(&q.params)
	q.sendRaw(resp[:])
	q.state = queueLive
	q.handshakeBy = q.now() + cfg.ConnectTimeout.Nanoseconds()
}

// termReq ends the connection because the host reports a protocol error.
func (q *queue) termReq(r *pdu.TermReq) {
	f := r.Fault()
	q.peerLog().Report(event.HostProtocolError, "local", q.conn.info.Local, "err", f)
	q.Disconnect(f)
}

// capsule makes a request for a command and puts it on the batch for Prepare. b is the input after
// its header. Small data that is complete in b stays there. All other data is direct, and the
// caller has the batch prepared before it continues. capsule returns the unconsumed part of b.
func (q *queue) capsule(c *pdu.CapsuleCmd, b []byte) (rest []byte) {
	n := q.params.DataLength(c.Header())
	status, f := q.checkSGL(c, n)
	if !f.OK() {
		q.fault(f, c[:])
		return nil
	}
	r := q.get()
	if r == nil {
		// More commands than the submission queue has entries (Base section 3.3.2.6): flow control
		// is lost.
		q.fault(pdu.Fault{FES: pdu.FESSequence}, c[:])
		return nil
	}
	sqe := c.SQE()
	if q.g.inTurn += commandCost; !q.connected {
		q.g.inTurn += connectCost
	}
	if !q.connected && sqe.Opcode() == nvme.FabricsOpcode &&
		sqe.FabricsType() == nvme.FabricsConnect {
		q.setAdmin(sqe.Connect().QID() == 0)
	}
	r.SQE = *sqe
	r.Status = status
	if status.OK() {
		r.HostLength = sqe.SGL1().Length()
	}
	r.Start = q.g.arrived
	r.state = requestParsed
	r.placed = 0
	q.g.batch = append(q.g.batch, &r.Request)
	q.large = n >= directMin
	if n == 0 {
		return b
	}
	digest := q.params.DataDigestSize()
	if q.large || len(b) < int(n)+digest || !q.g.cfg.Memory.Promise(q.flow, int(n)) {
		q.expect(r, n)
		return b
	}
	r.InCapsule = true
	r.data = b[:n]
	if digest > 0 {
		q.checkDigest(r, pdu.CRC(0, r.data), pdu.GetCRC(b[n:]))
	}
	return b[int(n)+digest:]
}

// checkSGL validates the descriptor of a command with n bytes of data. With a Fault the stream
// cannot be trusted any more; with a status the command is refused.
func (q *queue) checkSGL(c *pdu.CapsuleCmd, n uint32) (nvme.Status, pdu.Fault) {
	sqe, sgl := c.SQE(), c.SQE().SGL1()
	// Only SGLs: PSDT is 01b (Base section 4.1.1), or any for Fabrics commands (section 4.1.2).
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
		// ICDOFF is 0 (Base section 5.1.13.2.1).
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

// toHost reports whether data goes from the controller to the host only, by the opcode (Base
// section 4.1.1) or, for Fabrics commands, by FCTYPE (Base section 6).
func toHost(sqe *nvme.SQE) bool {
	if sqe.Opcode() == nvme.FabricsOpcode {
		return sqe.FabricsType()&3 == 2
	}
	return sqe.Opcode()&3 == 2
}

// h2cData validates the header of an H2CData and finds the place of its data. Data comes in order,
// in PDUs of any size up to MAXH2CDATA (TCP section 3.3.2.2).
func (q *queue) h2cData(d *pdu.Data) {
	r, f := q.findGrant(d)
	if !f.OK() {
		q.fault(f, d[:])
		return
	}
	q.expect(r, d.DATAL())
	q.dst = mem.NewCursor(r.Segs, int(r.placed))
}

// findGrant finds the request with the R2T that an H2CData answers.
func (q *queue) findGrant(d *pdu.Data) (*request, pdu.Fault) {
	ttag := d.TTAG()
	i := int(ttag & (1<<ttagBits - 1))
	if i >= len(q.reqs) {
		return nil, pdu.Fault{FES: pdu.FESSequence}
	}
	r := q.reqs[i]
	if r.state != requestReceiving || r.ttag != ttag || r.SQE.CID() != d.CCCID() {
		return nil, pdu.Fault{FES: pdu.FESSequence} // there was no such R2T
	}
	n, end := uint64(d.DATAL()), uint64(d.DATAO())+uint64(d.DATAL())
	switch {
	case n == 0:
		return nil, pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffDATAL}
	case d.DATAO() != r.placed, end > uint64(r.Length):
		return nil, pdu.Fault{FES: pdu.FESOutOfRange}
	}
	if f := d.Check(&q.params); !f.OK() {
		return nil, f
	}
	if d.Header().Flags()&pdu.LastPDU != 0 && end < uint64(r.Length) {
		// The rest would never come. A missing LAST_PDU is harmless.
		return nil, pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffFlags}
	}
	return r, pdu.Fault{}
}

// prepareBatch prepares the commands of the batch, and executes the ones with complete data.
func (g *Group) prepareBatch() int {
	n := len(g.batch)
	if n > 0 {
		g.cfg.Handler.Prepare(g.batch)
		for _, fr := range g.batch {
			r := fr.Owner.(*request)
			r.queue().prepared(r)
		}
		clear(g.batch)
		g.batch = g.batch[:0]
		g.cfg.Memory.EndPromises()
	}
	return n + g.execute()
}

// prepared continues with a command after Prepare.
func (q *queue) prepared(r *request) {
	q.flow = r.Flow
	if r.Deferred && r.data == nil && r != q.cur {
		r.state = requestWaiting
		return
	}
	r.Deferred = false
	moves := r.Status.OK() && r.Dir != fabric.NoData && r.Length > 0
	switch {
	case r.data != nil:
		q.fromCapsule(r, moves && !r.damaged)
	case moves && !r.ZeroCopy:
		q.wantMemory(r)
	default:
		q.start(r)
	}
}
