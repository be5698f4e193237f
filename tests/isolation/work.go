package isolation

import (
	"context"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// work is a kind of command that makes the target work.
type work struct {
	name  string
	op    func(op *host.Op, w *worker)
	admin func(w *worker, ctx context.Context, done func(int)) error // instead of op
}

const (
	workDepth = 100       // commands of a culprit
	workSize  = 4 << 20   // bytes of a command without data of its host
	workData  = 128 << 10 // bytes of a command with data
	// Commands use workSpan bytes of the namespace from there on. Copy writes after them.
	workSpan = 16 << 20
	workFrom = workSpan
)

// reads is the name of the kind for comparison.
const reads = "128K reads"

var works = []work{
	{name: reads, op: func(op *host.Op, w *worker) {
		op.Read(w.nsid, w.next(workData), workData/blockSize, w.buf[:workData])
	}},
	{name: "Copy", op: func(op *host.Op, w *worker) {
		var b []byte
		for range 4 {
			var r nvme.CopyRange
			r.Set(0, w.next(workSize/4), workSize/4/blockSize)
			b = append(b, r[:]...)
		}
		hosttest.SetCopy(op, w.nsid, w.next(workSize)+workSpan/blockSize, nvme.CopyRanges, b, 0)
	}},
	{name: "Verify", op: func(op *host.Op, w *worker) {
		hosttest.SetVerify(op, w.nsid, w.next(workSize), workSize/blockSize)
	}},
	{name: "Compare", op: func(op *host.Op, w *worker) {
		hosttest.SetCompare(op, w.nsid, w.next(workData), workData/blockSize, w.buf[:workData])
	}},
	{name: "Compare and Write", op: func(op *host.Op, w *worker) {
		block := uint64(workFrom/blockSize) + w.n/2%64
		if half := uint8(w.n%2) + 1; half == 1 {
			hosttest.SetCompare(op, w.nsid, block, 1, w.buf[:blockSize])
			op.SQE.SetFlags(half)
		} else {
			op.Write(w.nsid, block, 1, w.buf[:blockSize], 0)
			op.SQE.SetFlags(half)
		}
		w.n++
	}},
	{name: "Write Zeroes", op: func(op *host.Op, w *worker) {
		hosttest.SetWriteZeroes(op, w.nsid, w.next(workSize), workSize/blockSize, 0)
	}},
	{name: "discard", op: func(op *host.Op, w *worker) {
		var b []byte
		for range 4 {
			var r nvme.DSMRange
			r.Set(w.next(workSize), workSize/blockSize)
			b = append(b, r[:]...)
		}
		hosttest.SetDiscard(op, w.nsid, b)
	}},
	{name: "Flush", op: func(op *host.Op, w *worker) { op.Flush(w.nsid) }},
	{name: "self-test", admin: (*worker).selfTest},
	{name: "Get Log", admin: (*worker).getLogs},
}

// workRows have a host with 100 commands of a kind.
var workRows = func() (list []row) {
	for _, k := range works {
		list = append(list, row{
			name: "100 commands of " + k.name, culprit: Host, attacks: "turns of the reactor",
			links: onBoth, busy: true,
			alone: true, // they take all remaining CPU time
			run: func(ctx context.Context, a *attack) error {
				p, err := a.join(ctx, 1)
				if err != nil {
					return err
				}
				defer p.close()
				w := &worker{c: p.Controller, q: p.queues[0], nsid: nsPool, buf: p.buf}
				return w.run(ctx, &k, func(n int) {
					a.takes(n)
					a.inPlace()
				})
			},
		})
	}
	return list
}()

// worker is a host that keeps a queue full of commands of one kind.
type worker struct {
	c    *host.Controller
	q    *host.Queue
	nsid uint32
	buf  []byte
	n    uint64 // counts bytes of begun commands
}

// next returns the first block of the next n bytes.
func (w *worker) next(n uint64) uint64 {
	w.n++
	return (workFrom + w.n%(workSpan/n)*n) / blockSize
}

// run works until ctx ends, and then waits for outstanding commands. It calls done with the number
// of commands that have completed.
func (w *worker) run(ctx context.Context, k *work, done func(int)) error {
	if k.admin != nil {
		return k.admin(w, ctx, done)
	}
	w.n = 0
	completions := make([]host.Completion, workDepth)
	for ctx.Err() == nil || w.q.Outstanding() > 0 {
		for ctx.Err() == nil && w.q.Outstanding() < workDepth {
			for half := range 2 { // a pair is never torn
				var op host.Op
				k.op(&op, w)
				if _, err := w.q.Submit(&op); err != nil {
					return err
				}
				if half == 0 && op.SQE.FUSE() == 0 {
					break
				}
			}
		}
		n, err := w.q.Poll(completions)
		if err != nil {
			return err
		}
		for i := range completions[:n] {
			st := completions[i].Status()
			switch st.Code() {
			case nvme.Success, nvme.CompareFailure, nvme.AbortedFailedFused:
			default:
				return st
			}
		}
		if done(n); n == 0 {
			if err := w.q.Wait(time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) selfTest(ctx context.Context, done func(int)) error {
	set := func(code nvme.SelfTestCode) error {
		var op host.Op
		op.SQE.SetOpcode(nvme.AdminSelfTest)
		op.SQE.SetNSID(w.nsid)
		op.SQE.SetCDW(10, uint32(code))
		_, err := w.c.Admin(context.Background(), &op)
		return err
	}
	if err := set(nvme.SelfTestExtended); err != nil {
		return err
	}
	done(1)
	<-ctx.Done()
	return set(nvme.SelfTestAbort)
}

// getLogs reads logs one after another. Two of them are made of all namespaces.
func (w *worker) getLogs(ctx context.Context, done func(int)) error {
	op := &host.Op{Data: make([]byte, 512)}
	for ctx.Err() == nil {
		for _, lid := range []nvme.LID{nvme.LogSMART, nvme.LogANA, nvme.LogError} {
			op.SQE = nvme.SQE{}
			op.SQE.SetOpcode(nvme.AdminGetLogPage)
			op.SQE.SetNSID(nvme.NSIDAll)
			op.SQE.GetLog().Set(lid, 512, 0, 0, true)
			if _, err := w.c.Admin(context.Background(), op); err != nil {
				return err
			}
			done(1)
		}
	}
	return nil
}
