package host

import (
	"errors"
	"fmt"
)

// Violation is a protocol violation by the controller. It ends the queue.
type Violation struct {
	QID  uint16
	What string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("queue %d: protocol violation by the controller: %s", v.QID, v.What)
}

// Errors of queues. They are returned wrapped, with details.
var (
	// ErrClosed: the connection was ended by the controller, by Close, or by the network.
	ErrClosed = errors.New("connection closed")
	// ErrFull: every command of the queue is outstanding; call Poll first.
	ErrFull = errors.New("queue is full")
	// ErrRefused: the controller refused the connection before the Connect command (RDMA reject, no
	// valid ICResp).
	ErrRefused = errors.New("connection refused")
)
