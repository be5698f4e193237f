package tcp

import (
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
)

// Transfer tags: the request's tag in the low bits and a count of its uses above, never 0 or FFFFh,
// so that a tag of the past is recognised.
const (
	ttagBits   = 10 // maxDepth = 1<<ttagBits
	ttagRounds = 1<<(16-ttagBits) - 2
)

// grant asks for all the data of a command with one R2T. One is always within the host's MAXR2T,
// which counts from 1 (TCP section 3.6.2.2).
func (q *queue) grant(r *request) {
	r.round = r.round%ttagRounds + 1
	r.ttag = r.tag | r.round<<ttagBits
	r.recvd = 0
	r.state = requestGranting
	q.enqueue(r, sendR2T, pdu.R2TSize+q.params.HeaderDigestSize())
	q.touch()
}

// h2cData validates the header of a H2CData and makes its data go to the right place. Data comes in
// order, in PDUs of any size up to MAXH2CDATA (TCP section 3.3.2.2).
func (q *queue) h2cData(d *pdu.Data) {
	r, f := q.findGrant(d)
	if !f.OK() {
		q.fault(f, d[:])
		return
	}
	q.expect(r, d.DATAL())
}

func (q *queue) findGrant(d *pdu.Data) (*request, pdu.Fault) {
	ttag := d.TTAG()
	i := int(ttag & (1<<ttagBits - 1))
	if i >= len(q.reqs) {
		return nil, pdu.Fault{FES: pdu.FESSequence}
	}
	r := q.reqs[i]
	if r.state != requestGranted || r.ttag != ttag || r.SQE.CID() != d.CCCID() {
		return nil, pdu.Fault{FES: pdu.FESSequence} // no R2T asked for this
	}
	n, end := uint64(d.DATAL()), uint64(d.DATAO())+uint64(d.DATAL())
	switch {
	case n == 0:
		return nil, pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffDATAL}
	case d.DATAO() != r.recvd, end > uint64(r.Length):
		return nil, pdu.Fault{FES: pdu.FESOutOfRange}
	}
	if f := d.Check(&q.params); !f.OK() {
		return nil, f
	}
	if d.Header().Flags()&pdu.LastPDU != 0 && end < uint64(r.Length) {
		// The host believes to be done: the rest would never come. A missing LAST_PDU does no harm.
		return nil, pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffFlags}
	}
	return r, pdu.Fault{}
}
