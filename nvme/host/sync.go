package host

import (
	"context"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// DialQueue opens a queue's connection without Connect, for tests. size is the number of entries;
// cntlid is for the RDMA connect request of an I/O queue.
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

// ConnectCommand returns a Connect command for queue qid. The caller may alter it and its data.
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

// Do submits a command and waits for its completion. No other command may be outstanding. If ctx is
// done first the queue ends, because the controller may still use the data of the command.
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
	return q.next(ctx, op)
}

func (q *Queue) next(ctx context.Context, op *Op) (nvme.CQE, error) {
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

// waitSlice returns the time to block before checking ctx again.
func waitSlice(ctx context.Context) time.Duration {
	d := 20 * time.Millisecond // the delay until a cancellation without a deadline is noticed
	if t, ok := ctx.Deadline(); ok {
		d = min(d, max(time.Until(t), time.Millisecond))
	}
	return d
}
