package main

import "time"

// fairness is polite queues, which have one I/O in flight each, beside a greedy one.
type fairness struct {
	name   string
	greedy workload
	think  time.Duration // of the polite queues
}

const (
	politeName = "polite"
	greedyName = "greedy"

	// What a row of them has: p99 of the polite queues alone and beside the greedy one, in
	// microseconds, and what that got.
	aloneFigure  = "alone_p99_us"
	besideFigure = "beside_p99_us"
	greedyFigure = "greedy_iops"
)

func (f fairness) polite() workload {
	return workload{
		name: politeName, size: 4 << 10, depth: 1, queues: 31, reads: 100,
		think: f.think,
	}
}

func fairnessCases() []fairness {
	greedy := func(size, reads int, sequential bool) workload {
		return workload{
			name: greedyName, size: size, depth: 128, queues: 1, reads: reads,
			sequential: sequential,
		}
	}
	return []fairness{
		{"31 polite queues beside 4K random read QD 128", greedy(4<<10, 100, false), 0},
		{"31 polite queues beside 4K random write QD 128", greedy(4<<10, 0, false), 0},
		{"31 polite queues beside 128K read QD 128", greedy(128<<10, 100, true), 0},
		{"31 polite queues beside 128K write QD 128", greedy(128<<10, 0, true), 0},
		{
			"31 queues with a read every 10 ms beside 128K read QD 128", greedy(128<<10, 100, true),
			10 * time.Millisecond,
		},
	}
}

// fairnessRound measures the polite queues alone and beside the greedy one, in turns first.
func (b *bench) fairnessRound(f fairness, round int) error {
	found := figures{}
	for i := range 2 {
		list := []workload{f.polite()}
		if (i+round)%2 == 1 {
			list = append(list, f.greedy)
		}
		p, g, err := b.politeRound(list...)
		if err != nil {
			return err
		}
		if p99 := p.latency.quantile(0.99) / 1e3; len(list) == 1 {
			found[aloneFigure] = p99
		} else {
			found[besideFigure], found[greedyFigure] = p99, float64(g.ops)/g.elapsed.Seconds()
		}
	}
	b.record(workload{name: f.name, size: f.polite().size}, whoTarget, found)
	return nil
}

// politeRound runs the workloads together and returns what the polite queues and the greedy one
// did.
func (b *bench) politeRound(list ...workload) (p, greedy outcome, err error) {
	s, err := b.server(variant{})
	if err != nil {
		return p, greedy, err
	}
	l, err := newLoad(s.reach(false), benchNQN, list...)
	if err != nil {
		return p, greedy, err
	}
	defer l.close()
	count := func(p, greedy *outcome) func(s *stream) *outcome {
		return func(s *stream) *outcome {
			if s.w.name == politeName {
				return p
			}
			return greedy
		}
	}
	if err := l.run(b.duration/4, count(&outcome{}, &outcome{})); err != nil { // warm up
		return p, greedy, err
	}
	err = l.run(b.duration, count(&p, &greedy))
	return p, greedy, err
}
