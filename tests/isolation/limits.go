package isolation

import (
	"context"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// limitRows have a host with many commands at its limit.
var limitRows = []row{{
	name: "at its limit", culprit: Host, attacks: "places in its queues", links: onBoth,
	crossed: true,
	run:     func(ctx context.Context, a *attack) error { return atLimit(ctx, a, 2, mdts) },
	bounds: func(_ *attack, now, base counts) error {
		if n := now.dataMemory - base.dataMemory; n > 4*mdts {
			return fmt.Errorf("what waits at a limit has %d bytes of data memory", n)
		}
		return nil
	},
}}

// filler is a host that keeps four queues full: one with small writes with in-capsule data, the
// others with reads and writes of a given size.
type filler struct {
	*party
	size int
	done [128]host.Completion
}

// step submits as many commands as fit if more is set, takes completions, and returns the number of
// outstanding commands.
func (f *filler) step(more bool) (outstanding int, err error) {
	const elsewhere = 1024 // a block outside the range of the victim
	for i, q := range f.queues {
		for more && q.Free() > 0 {
			var op host.Op
			switch blocks := uint32(f.size / blockSize); i {
			case 0:
				op.Write(nsPool, elsewhere, 1, f.buf[:blockSize], 0)
			case 1:
				op.Write(nsPool, elsewhere, blocks, f.buf[:f.size], 0)
			default:
				op.Read(nsPool, elsewhere, blocks, f.buf[:f.size])
			}
			if _, err := q.Submit(&op); err != nil {
				return 0, err
			}
		}
		n, err := q.Poll(f.done[:])
		if err != nil {
			return 0, err
		}
		for i := range f.done[:n] {
			if st := f.done[i].Status(); !st.OK() {
				return 0, st
			}
		}
		outstanding += q.Outstanding()
	}
	return outstanding, nil
}

// atLimit keeps the queues of a host with a limit full.
func atLimit(ctx context.Context, a *attack, iops int64, size int) error {
	a.limitCulprit(iops)
	defer a.limitCulprit(0)
	p, err := a.join(ctx, 4)
	if err != nil {
		return err
	}
	defer p.close()
	f := &filler{party: p, size: size}
	return a.repeat(ctx, 5*time.Millisecond, func() error {
		n, err := f.step(true)
		a.takes(n)
		a.inPlace()
		return err
	})
}

func (e *env) limitCulprit(iops int64) {
	e.server.Target().SetHostLimits(culpritNQN, qos.Limits{IOPS: iops})
}
