package main

import "time"

// fairness is a row in which light queues, with one I/O in flight each, run beside a deep queue.
type fairness struct {
	name  string
	deep  workload
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

func (f fairness) light() workload {
	return workload{
		name: lightName, size: 4 << 10, depth: 1, queues: 31, reads: 100, think: f.think,
	}
}

func fairnessCases() []fairness {
	deep := func(size, reads int, sequential bool) workload {
		return workload{
			name: deepName, size: size, depth: 128, queues: 1, reads: reads, sequential: sequential,
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
		list := []workload{f.light()}
		if (i+round)%2 == 1 {
			list = append(list, f.deep)
		}
		light, deep, err := b.mixedRound(list...)
		if err != nil {
			return err
		}
		if p99 := float64(light.latency.Quantile(0.99)) / 1e3; len(list) == 1 {
			found[aloneFigure] = p99
		} else {
			found[besideFigure] = p99
			found[deepFigure] = float64(deep.ops) / deep.elapsed.Seconds()
		}
	}
	b.record(workload{name: f.name, size: f.light().size}, whoTarget, found)
	return nil
}

// mixedRound runs the workloads together and returns the outcome of the light queues and that of
// the deep queue.
func (b *bench) mixedRound(list ...workload) (light, deep outcome, err error) {
	s, err := b.server(variant{})
	if err != nil {
		return light, deep, err
	}
	l, err := newLoad(s.transport(false), benchNQN, list...)
	if err != nil {
		return light, deep, err
	}
	defer l.close()
	count := func(light, deep *outcome) func(s *stream) *outcome {
		return func(s *stream) *outcome {
			if s.w.name == lightName {
				return light
			}
			return deep
		}
	}
	if err := l.run(b.duration/4, count(&outcome{}, &outcome{})); err != nil { // warm up
		return light, deep, err
	}
	err = l.run(b.duration, count(&light, &deep))
	return light, deep, err
}
