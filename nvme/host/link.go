package host

import (
	"context"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport connects queues: a TCP or an RDMA value, for many controllers at a time.
type Transport interface {
	// open establishes the connection of one queue.
	open(ctx context.Context, p linkParams) (link, error)
	// Type is the transport type in discovery log entries.
	Type() nvme.TransportType
}

type linkParams struct {
	qid    uint16
	size   int    // entries of the submission queue
	cntlid uint16 // of the RDMA CM private data
	mem    *memory
	// see Options
	tolerant bool
	// The names in the Connect command, if it will be sent.
	hostNQN, subNQN string
}

// link is the connection of one queue. Only the queue's goroutine uses it, apart from close.
type link interface {
	// sqe returns the memory for building the command of slot i.
	sqe(i int) *nvme.SQE
	// describe sets the SGL descriptor in slot i. capsule is the in-capsule data size.
	describe(s *slot, i, capsule int) error
	// submit queues the command in slot i. The next poll sends it at the latest.
	submit(q *Queue, i int) error
	// poll sends queued commands and data and passes responses to q.
	poll(q *Queue) error
	// wait blocks until poll may have work, wakeFD (if not negative) is readable, or d has passed.
	wait(q *Queue, wakeFD int, d time.Duration) error
	close() error
}
