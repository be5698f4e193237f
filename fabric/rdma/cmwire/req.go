package cmwire

// RecFmt is the only record format.
const RecFmt = 0

// ReqSize is the size of the private data of a connect request in bytes.
const ReqSize = 32

// Req is the private data of a connect request, host to controller (RDMA section 3.1.4, figure 5).
type Req struct {
	RecFmt uint16
	// QID is the queue the connection will carry; 0 is the admin queue.
	QID uint16
	// HRQSize is the number of responses the host can receive.
	HRQSize uint16
	// HSQSize is the most commands of the host outstanding, 0-based: SQSIZE of its Connect.
	HSQSize uint16
	// CNTLID is the controller of an I/O queue, 0 for admin queues and older hosts.
	CNTLID uint16
	_      [22]byte
}

// ParseReq reads the private data of a connect request. ok is false if that is too short. RoCE
// always delivers 56 bytes (IBTA annex A11, RDMA IP CM service). So private data that is all zeroes
// means that the host sent none. It is not a legal record (HRQSIZE 0) and counts as too short.
func ParseReq(b []byte) (r Req, ok bool) {
	r, ok = Parse[Req](b)
	return r, ok && [ReqSize]byte(b) != [ReqSize]byte{}
}
