package host

import (
	"errors"
	"fmt"
)

// Violation is a breach of the protocol by the controller. It ends the queue.
type Violation struct {
	QID  uint16
	What string
}

// Error describes the breach.
func (v *Violation) Error() string {
	return fmt.Sprintf("queue %d: protocol violation by the controller: %s", v.QID, v.What)
}

// Errors of queues. They are wrapped with what happened.
var (
	// ErrClosed says that the connection is gone: closed by the controller, by Close, or by an
	// error of the network.
	ErrClosed = errors.New("connection closed")
	// ErrFull says that every command of the queue is outstanding: Poll first.
	ErrFull = errors.New("queue is full")
	// ErrRefused says that the controller refused the connection below the Connect command (RDMA
	// reject, ICResp missing).
	ErrRefused = errors.New("connection refused")
)
