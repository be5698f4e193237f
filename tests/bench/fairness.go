package main

import (
	"time"

	"github.com/nvmf-target/nvmf-target/internal/load"
)

// fairness is a row in which light queues, with one I/O in flight each, run beside a deep queue.
type fairness struct {
	name  string
	deep  load.Workload
	think time.Duration // of the light queues
}

const (
	lightName = "light"
	deepName  = "deep"

	// The figures of such a row: p99 of the light queues alone and beside the deep queue, in
	// microseconds, and the IOPS of the deep queue.
	aloneFigure  = "alone_p99_us"
	besideFigure = "beside_p99_us"
	deepFigure   = "deep_iops"
)

func (f fairness) light() load.Workload {
	return load.Workload{
		Name: lightName, Size: 4 << 10, Depth: 1, Queues: 31, Reads: 100, Think: f.think,
	}
}

func fairnessCases() []fairness {
	deep := func(size, reads int, sequential bool) load.Workload {
		return load.Workload{
			Name: deepName, Size: size, Depth: 128, Queues: 1, Reads: reads, Sequential: sequential,
		}
	}
	return []fairness{
		{"31 queues at QD 1 beside 4K random read QD 128", deep(4<<10, 100, false), 0},
		{"31 queues at QD 1 beside 4K random write QD 128", deep(4<<10, 0, false), 0},
		{"31 queues at QD 1 beside 128K read QD 128", deep(128<<10, 100, true), 0},
		{"31 queues at QD 1 beside 128K write QD 128", deep(128<<10, 0, true), 0},
		{
			"31 queues with a read every 10 ms beside 128K read QD 128", deep(128<<10, 100, true),
			10 * time.Millisecond,
		},
	}
}

// fairnessRound measures the light queues alone and beside the deep queue, in alternating order.
func (b *bench) fairnessRound(f fairness, round int) error {
	found := figures{}
	for i := range 2 {
		list := []load.Workload{f.light()}
		if (i+round)%2 == 1 {
			list = append(list, f.deep)
		}
		light, deep, err := b.mixedRound(list...)
		if err != nil {
			return err
		}
		if p99 := float64(light.Latency().Quantile(0.99)) / 1e3; len(list) == 1 {
			found[aloneFigure] = p99
		} else {
			found[besideFigure] = p99
			found[deepFigure] = iops(&deep)
		}
	}
	b.record(random4K(f.name, 1), whoTarget, found)
	return nil
}

// mixedRound runs the workloads together and returns the outcomes of the light queues and of the
// deep queue.
func (b *bench) mixedRound(list ...load.Workload) (light, deep load.Outcome, err error) {
	s, err := b.server(variant{})
	if err != nil {
		return light, deep, err
	}
	l, err := connect(s.transport(false), list...)
	if err != nil {
		return light, deep, err
	}
	defer l.Close()
	count := func(light, deep *load.Outcome) func(s *load.Stream) *load.Outcome {
		return func(s *load.Stream) *load.Outcome {
			if s.Workload().Name == lightName {
				return light
			}
			return deep
		}
	}
	if err := l.Run(b.duration/4, count(new(load.Outcome), new(load.Outcome))); err != nil {
		return light, deep, err // of the warm-up
	}
	err = l.Run(b.duration, count(&light, &deep))
	return light, deep, err
}
