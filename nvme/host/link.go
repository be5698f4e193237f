package host

import (
	"context"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport is a way to controllers: a TCP or an RDMA value. The same value serves many
// controllers, one after another or at once.
type Transport interface {
	// open makes the connection of one queue. p.CNTLID is what the RDMA CM private data carries.
	open(ctx context.Context, p linkParams) (link, error)
	// Type is what the transport is called in discovery entries.
	Type() nvme.TransportType
}

type linkParams struct {
	qid    uint16
	size   int // entries of the submission queue
	cntlid uint16
	mem    *memory
}

// link is the connection of one queue. It belongs to the queue's goroutine, apart from close.
type link interface {
	// sqe is where the command of slot i is built.
	sqe(i int) *nvme.SQE
	// describe writes the SGL descriptor of the command in slot i for its data. capsule is the
	// number of data bytes that fit into a command capsule.
	describe(s *slot, i, capsule int) error
	// submit takes over the command in slot i: it is sent by the next poll at the latest.
	submit(q *Queue, i int) error
	// poll sends what waits and gives what arrived to q.
	poll(q *Queue) error
	// wait blocks until poll may have something to do, wakeFD (if not negative) is readable, or d
	// has passed.
	wait(q *Queue, wakeFD int, d time.Duration) error
	// countsData says that the queue sees the data of commands move (slot.moved).
	countsData() bool
	// close ends the connection.
	close() error
}
