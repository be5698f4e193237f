package cmwire

import (
	"fmt"
	"strconv"
)

// Limits are the limits of a controller.
type Limits struct {
	// MaxQID is the largest queue ID.
	MaxQID uint16
	// MaxAdminDepth and MaxDepth bound the commands (HSQSIZE+1) of admin and I/O queues.
	MaxAdminDepth, MaxDepth int
	// MaxCNTLID is the largest controller ID an I/O queue may ask for.
	MaxCNTLID uint16
}

// Refusal is a status with the required and the received value of a field, for the log.
type Refusal struct {
	Status             Status
	Expected, Received string
}

// Check validates a request. The zero Refusal accepts it. The fields are checked in wire order.
func (r *Req) Check(l *Limits) Refusal {
	depth, most := int(r.HSQSize)+1, l.MaxDepth
	if r.QID == 0 {
		most = l.MaxAdminDepth
	}
	switch {
	case r.RecFmt != RecFmt: // RDMA section 3.1.4, figure 5: shall be 0h
		return Refusal{InvalidRecFmt, strconv.Itoa(RecFmt), strconv.Itoa(int(r.RecFmt))}
	case r.QID > l.MaxQID:
		return Refusal{InvalidQID, fmt.Sprintf("0 to %d", l.MaxQID), strconv.Itoa(int(r.QID))}
	case r.HRQSize == 0: // no response could ever be sent
		return Refusal{InvalidHRQSize, "at least 1", "0"}
	case r.HSQSize == 0, // equals SQSIZE, which must not be 0 (Base section 6.3, Connect command)
		depth > most:
		return Refusal{InvalidHSQSize, fmt.Sprintf("2 to %d commands", most), strconv.Itoa(depth)}
	case r.QID == 0 && r.CNTLID != 0: // figure 5: shall be cleared to 0h
		return Refusal{InvalidCNTLID, "0 on an admin queue", fmt.Sprintf("%#x", r.CNTLID)}
	case r.CNTLID > l.MaxCNTLID:
		return Refusal{
			InvalidCNTLID, fmt.Sprintf("0 to %#x", l.MaxCNTLID),
			fmt.Sprintf("%#x", r.CNTLID),
		}
	}
	return Refusal{}
}
