package isolation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// limitRows have a host with many commands at its limit.
var limitRows = []row{{
	name: "at its limit", culprit: "host", attacks: "places in its queues", links: onBoth,
	crossed: true,
	run:     func(ctx context.Context, a *attack) error { return atLimit(ctx, a, 2, mdts) },
	bounds: func(a *attack, now, base counts) error {
		if n, _ := a.reactors(); n > 4*mdts {
			return fmt.Errorf("what waits at a limit has %d bytes of data memory", n)
		}
		return nil
	},
}}

// atLimit keeps four queues of a host with a limit full: one with small writes, whose data is in
// the capsule, the others with reads and writes of a size.
func atLimit(ctx context.Context, a *attack, iops int64, size int) error {
	a.server.Target().SetHostLimits(culpritNQN, target.Limits{IOPS: iops})
	defer a.server.Target().SetHostLimits(culpritNQN, target.Limits{})
	p, err := a.join(ctx, 4)
	if err != nil {
		return err
	}
	defer p.close()
	const elsewhere = 1024 // a block that is not the victim's
	done := make([]host.Completion, 128)
	fill := func() error {
		for i, q := range p.queues {
			for q.Free() > 0 {
				var op host.Op
				switch blocks := uint32(size / blockSize); i {
				case 0:
					op.Write(nsPool, elsewhere, 1, p.buf[:blockSize], 0)
				case 1:
					op.Write(nsPool, elsewhere, blocks, p.buf[:size], 0)
				default:
					op.Read(nsPool, elsewhere, blocks, p.buf[:size])
				}
				if _, err := q.Submit(&op); err != nil {
					return err
				}
			}
			n, err := q.Poll(done)
			if err != nil {
				return err
			}
			for i := range done[:n] {
				if st := done[i].Status(); !st.OK() {
					return st
				}
			}
			a.takes(q.Outstanding())
		}
		return nil
	}
	if err := fill(); err != nil {
		return err
	}
	a.inPlace()
	return a.repeat(ctx, 5*time.Millisecond, fill)
}

// TestBesideLimit measures what a host at its limit costs another: the ratio of the p99 of the
// victim beside it to that alone, in alternating windows. NVMF_LIMITS_ROUNDS=20 measures so many,
// of two seconds, and wants the median of the ratios to be 1.1 at most.
func TestBesideLimit(t *testing.T) {
	rounds, length, most := 3, 300*time.Millisecond, 3.0
	if s := os.Getenv("NVMF_LIMITS_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
		length, most = 2*time.Second, 1.1
	}
	for _, link := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		t.Run(link.String(), func(t *testing.T) {
			e := newEnv(t, link, nil)
			v := newVictim(e, 0)
			r := row{run: func(ctx context.Context, a *attack) error {
				return atLimit(ctx, a, 500, blockSize)
			}}
			base := e.count()
			var ratios []float64
			for range rounds {
				var all outcome
				took, o := v.run(length)
				all.add(o)
				all.alone.add(took)
				err := r.beside(e, v, length, base, &all)
				e.must(errors.Join(err, all.unbroken()))
				t.Log(&all)
				ratios = append(ratios, float64(all.beside.p99())/float64(all.alone.p99()))
			}
			slices.Sort(ratios)
			median := ratios[len(ratios)/2]
			t.Logf("p99 beside a host at its limit to that alone: median %.3f, %.3f to %.3f",
				median, ratios[0], ratios[len(ratios)-1])
			if median > most {
				t.Errorf("the median is %.3f, want at most %.2f", median, most)
			}
		})
	}
}
