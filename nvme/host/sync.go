package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// DialQueue opens the connection of a queue and nothing more: no Connect command is sent. It is for
// tests of controllers. The size is that of the submission queue in entries; cntlid goes into the
// RDMA connect request of an I/O queue.
func DialQueue(ctx context.Context, t Transport, qid uint16, size int, cntlid uint16) (*Queue,
	error,
) {
	p := linkParams{qid: qid, size: size, cntlid: cntlid, mem: new(memory)}
	l, err := t.open(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("queue %d: %w", qid, err)
	}
	return newQueue(l, qid, size, 0), nil
}

// ConnectCommand makes a Connect command for q; data may be altered before it is appended to
// op.Data by the caller.
func ConnectCommand(qid uint16, size int, o *Options, cntlid uint16) *Op {
	op := new(Op)
	var cattr nvme.CATTR
	if o.NoFlowControl {
		cattr |= nvme.CATTRNoFlowControl
	}
	kato := uint32(0)
	if qid == 0 {
		kato = uint32(o.KATO.Milliseconds())
	}
	op.SQE.Connect().Set(qid, uint16(size-1), cattr, kato)
	d := nvme.ConnectData{HostID: o.HostID, CNTLID: cntlid}
	nvme.PutNQN(&d.SUBNQN, o.SubNQN)
	nvme.PutNQN(&d.HOSTNQN, o.HostNQN)
	op.Data = nvme.Append(nil, &d)
	return op
}

// Do submits a command and waits for its completion. Nothing else may be outstanding. If ctx ends
// first the queue is dead, since its data may not be touched before the controller is done with it.
func (q *Queue) Do(ctx context.Context, op *Op) (nvme.CQE, error) {
	if n := q.Outstanding(); n > 0 {
		return nvme.CQE{}, fmt.Errorf("queue %d: %d commands are outstanding", q.id, n)
	}
	if isConnect(&op.SQE) {
		q.flow = op.SQE.Connect().CATTR()&nvme.CATTRNoFlowControl == 0
	}
	if _, err := q.Submit(op); err != nil {
		return nvme.CQE{}, err
	}
	for {
		var c [1]Completion
		n, err := q.Poll(c[:])
		if err != nil {
			return nvme.CQE{}, err
		}
		if n == 1 {
			return c[0].CQE, nil
		}
		if err := ctx.Err(); err != nil {
			return nvme.CQE{}, q.fail(fmt.Errorf("opcode %#x: no answer: %w", op.SQE.Opcode(), err))
		}
		if err := q.Wait(waitSlice(ctx)); err != nil {
			return nvme.CQE{}, q.fail(err)
		}
	}
}

// waitSlice is how long to block before looking at ctx again.
func waitSlice(ctx context.Context) time.Duration {
	d := 20 * time.Millisecond
	if t, ok := ctx.Deadline(); ok {
		d = min(d, max(time.Until(t), time.Millisecond))
	}
	return d
}

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

// WriteZeroes makes blocks logical blocks read as zeroes.
func (q *Queue) WriteZeroes(ctx context.Context, nsid uint32, slba uint64, blocks uint32,
	flags nvme.RWFlags,
) error {
	var op Op
	op.WriteZeroes(nsid, slba, blocks, flags)
	return q.run(ctx, &op)
}

// Flush makes completed writes durable.
func (q *Queue) Flush(ctx context.Context, nsid uint32) error {
	var op Op
	op.Flush(nsid)
	return q.run(ctx, &op)
}

// Discard deallocates the ranges in data, nvme.DSMRangeSize bytes each.
func (q *Queue) Discard(ctx context.Context, nsid uint32, data []byte) error {
	var op Op
	op.Discard(nsid, data)
	return q.run(ctx, &op)
}

// run is Do with an unsuccessful status as error.
func (q *Queue) run(ctx context.Context, op *Op) error {
	cqe, err := q.Do(ctx, op)
	if err == nil && !cqe.Status().OK() {
		err = cqe.Status()
	}
	return err
}

// StatusOf is the NVMe status in err: Success for nil, and false if err is no status.
func StatusOf(err error) (nvme.Status, bool) {
	var st nvme.Status
	return st, err == nil || errors.As(err, &st)
}
