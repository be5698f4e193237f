package cmwire

import "encoding/binary"

// RecFmt is the only record format.
const RecFmt = 0

// ReqSize is the size of the private data of a connect request in bytes.
const ReqSize = 32

// Req is the private data of a connect request, host to controller (RDMA section 3.1.4, figure 5).
type Req [ReqSize]byte

// ParseReq copies a record out of the private data of a connect request. ok is false if that is too
// short. RoCE always delivers 56 bytes (IBTA annex A11, RDMA IP CM service). So private data that
// is all zeroes means that the host sent none. It is no legal record (HRQSIZE 0) and counts as too
// short.
func ParseReq(b []byte) (r Req, ok bool) {
	ok = copy(r[:], b) == ReqSize && r != Req{}
	return r, ok
}

// Set makes a request. hrqsize is the number of receives the host posts, hsqsize the 0-based number
// of commands it sends (the SQSIZE of its Connect command), cntlid the controller of an I/O queue
// and 0 for the admin queue.
func (r *Req) Set(qid, hrqsize, hsqsize, cntlid uint16) {
	*r = Req{}
	binary.LittleEndian.PutUint16(r[0:], RecFmt)
	binary.LittleEndian.PutUint16(r[2:], qid)
	binary.LittleEndian.PutUint16(r[4:], hrqsize)
	binary.LittleEndian.PutUint16(r[6:], hsqsize)
	binary.LittleEndian.PutUint16(r[8:], cntlid)
}

// RecFmt is the record format.
func (r *Req) RecFmt() uint16 { return binary.LittleEndian.Uint16(r[0:]) }

// QID is the queue the connection will carry; 0 is the admin queue.
func (r *Req) QID() uint16 { return binary.LittleEndian.Uint16(r[2:]) }

// HRQSize is the number of responses the host can receive.
func (r *Req) HRQSize() uint16 { return binary.LittleEndian.Uint16(r[4:]) }

// HSQSize is the number of commands the host may have outstanding, 0-based.
func (r *Req) HSQSize() uint16 { return binary.LittleEndian.Uint16(r[6:]) }

// CNTLID is the controller of an I/O queue. Hosts older than the field leave it 0.
func (r *Req) CNTLID() uint16 { return binary.LittleEndian.Uint16(r[8:]) }
