package isolation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestBesideLimit measures the cost of a host at its limit for another host: the ratio of the p99
// of the victim beside it to the p99 while the same host is connected and idle. A round alternates
// short windows of both, so that other load on the machine affects both. The median of the ratios
// of 12 rounds of 8 s is at most 1.1.
func TestBesideLimit(t *testing.T) {
	testutil.Soak(t, "it measures the p99 of reads and writes")
	const rounds, windows, most = 12, 20, 1.1
	for _, link := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		t.Run(link.String(), func(t *testing.T) {
			var ratios []float64
			for round := range rounds {
				t.Run(fmt.Sprint(round), func(t *testing.T) { // ends with its target
					alone, beside := besideLimit(t, link, windows)
					ratios = append(ratios, float64(beside)/float64(alone))
					t.Logf("p99 alone %v, beside %v", alone, beside)
				})
			}
			if len(ratios) < rounds {
				t.FailNow()
			}
			slices.Sort(ratios)
			median := ratios[len(ratios)/2]
			t.Logf("p99 beside a host at its limit to that alone: median %.3f, %.3f to %.3f",
				median, ratios[0], ratios[len(ratios)-1])
			testutil.True(t, median <= most, "the median is %.3f, want at most %.2f", median, most)
		})
	}
}

// besideLimit is a round of TestBesideLimit.
func besideLimit(t *testing.T, link nvme.TransportType, windows int) (alone, beside time.Duration) {
	const limit = 500
	e := newEnv(t, kind{link: link}, nil)
	v := newVictim(e, 0)
	ctx, cancel := context.WithCancel(t.Context())
	a := &attack{env: e, ready: make(chan struct{})}
	p, err := a.join(ctx, 4)
	e.must(err)
	var on atomic.Bool
	var outstanding atomic.Int64
	ended := make(chan error, 1)
	go func() {
		f := &filler{party: p, size: blockSize}
		ended <- a.repeat(ctx, 2*time.Millisecond, func() error {
			n, err := f.step(on.Load())
			outstanding.Store(int64(n))
			return err
		})
		p.close()
	}()
	var all outcome
	for range windows {
		for _, busy := range []bool{false, true} {
			on.Store(busy)
			e.limitCulprit(map[bool]int64{true: limit}[busy])
			for n := int64(-1); len(ended) == 0 && (busy != (n > limit-100) || !busy && n != 0); {
				n = outstanding.Load()
				_, o := v.run(few)
				all.add(o)
			}
			took, o := v.run(window{length: 200 * time.Millisecond})
			all.add(o)
			if busy {
				all.beside.add(took)
			} else {
				all.alone.add(took)
			}
		}
	}
	cancel()
	e.must(errors.Join(<-ended, all.unbroken()))
	return all.alone.p99(), all.beside.p99()
}
