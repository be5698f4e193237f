package host

import (
	"context"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Read reads blocks logical blocks into data.
func (q *Queue) Read(ctx context.Context, nsid uint32, slba uint64, blocks uint32,
	data []byte,
) error {
	var op Op
	op.Read(nsid, slba, blocks, data)
	return q.run(ctx, &op)
}

// Write writes blocks logical blocks from data.
func (q *Queue) Write(ctx context.Context, nsid uint32, slba uint64, blocks uint32, data []byte,
	flags nvme.RWFlags,
) error {
	var op Op
	op.Write(nsid, slba, blocks, data, flags)
	return q.run(ctx, &op)
}

// Flush makes completed writes durable.
func (q *Queue) Flush(ctx context.Context, nsid uint32) error {
	var op Op
	op.Flush(nsid)
	return q.run(ctx, &op)
}

// run is Do, with an unsuccessful status returned as an error.
func (q *Queue) run(ctx context.Context, op *Op) error {
	cqe, err := q.Do(ctx, op)
	if err == nil && !cqe.Status().OK() {
		err = cqe.Status()
	}
	return err
}
