package cmwire

import "fmt"

// Limits is what a controller takes.
type Limits struct {
	// MaxQID is the largest queue ID.
	MaxQID uint16
	// MaxAdminDepth and MaxDepth bound the number of commands (HSQSIZE+1) of the admin queue and of
	// I/O queues.
	MaxAdminDepth, MaxDepth int
	// MaxCNTLID is the largest controller ID an I/O queue may ask for.
	MaxCNTLID uint16
}

// Check validates a request and returns Accepted, or the status to reject it with and the reason in
// words, for the log. The fields are checked in their order on the wire.
func (r *Req) Check(l *Limits) (s Status, why string) {
	depth, most := int(r.HSQSize())+1, l.MaxDepth
	if r.QID() == 0 {
		most = l.MaxAdminDepth
	}
	switch {
	case r.RecFmt() != RecFmt: // RDMA section 3.1.4, figure 5: shall be 0h
		return InvalidRecFmt, fmt.Sprintf("record format %d, only %d is known", r.RecFmt(), RecFmt)
	case r.QID() > l.MaxQID:
		return InvalidQID, fmt.Sprintf("queue ID %d, the largest is %d", r.QID(), l.MaxQID)
	case r.HRQSize() == 0: // no response could ever be sent
		return InvalidHRQSize, "host receive queue size 0"
	case r.HSQSize() == 0: // equals SQSIZE, which must not be 0 (Base section 6.3, Connect command)
		return InvalidHSQSize, "host send queue size 0, which is 0-based"
	case depth > most:
		return InvalidHSQSize,
			fmt.Sprintf("host send queue of %d commands, queue %d takes at most %d", depth, r.QID(),
				most)
	case r.QID() == 0 && r.CNTLID() != 0: // figure 5: shall be cleared to 0h
		return InvalidCNTLID, fmt.Sprintf("controller ID %d on an admin queue", r.CNTLID())
	case r.CNTLID() > l.MaxCNTLID:
		return InvalidCNTLID,
			fmt.Sprintf("controller ID %#x, the largest is %#x", r.CNTLID(), l.MaxCNTLID)
	}
	return Accepted, ""
}
