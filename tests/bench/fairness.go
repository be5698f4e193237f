package main

import (
	"fmt"
	"regexp"
	"time"
)

// fairness is polite queues, which have one I/O in flight each, beside a greedy one.
type fairness struct {
	name   string
	greedy workload
	think  time.Duration // of the polite queues; if any, p99 itself is bounded, since alone it is a wake-up of the target
}

const (
	politeName  = "polite"
	sparseBound = 1000 // microseconds
)

func (f fairness) polite() workload {
	return workload{name: politeName, size: 4 << 10, depth: 1, queues: 31, reads: 100, think: f.think}
}

// fairnessCases are those whose name matches.
func fairnessCases(filter string) ([]fairness, error) {
	re, err := regexp.Compile(filter)
	if err != nil {
		return nil, err
	}
	var kept []fairness
	for _, f := range []fairness{
		{"fairness: 31 polite queues beside 4K random read QD 128", workload{size: 4 << 10, depth: 128, queues: 1, reads: 100}, 0},
		{"fairness: 31 polite queues beside 4K random write QD 128", workload{size: 4 << 10, depth: 128, queues: 1}, 0},
		{"fairness: 31 polite queues beside 128K read QD 128", workload{size: 128 << 10, depth: 128, queues: 1, reads: 100, sequential: true}, 0},
		{"fairness: 31 polite queues beside 128K write QD 128", workload{size: 128 << 10, depth: 128, queues: 1, sequential: true}, 0},
		{
			"fairness: 31 queues with a read every 10 ms beside 128K read QD 128",
			workload{size: 128 << 10, depth: 128, queues: 1, reads: 100, sequential: true},
			10 * time.Millisecond,
		},
	} {
		if re.MatchString(f.name) {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

// fairResult is p99 of the polite queues in microseconds, round by round, and what the greedy one got.
type fairResult struct{ alone, beside, greedyIOPS []float64 }

// fairnessRound measures the polite queues alone and beside the greedy one.
func (b *bench) fairnessRound(f fairness, round int, r *fairResult) error {
	for i := range 2 {
		if greedy := (i+round)%2 == 1; greedy {
			f.greedy.name = "greedy"
			p, g, err := b.politeRound(f.polite(), f.greedy)
			if err != nil {
				return err
			}
			r.beside = append(r.beside, p.latency.quantile(0.99)/1e3)
			r.greedyIOPS = append(r.greedyIOPS, float64(g.ops)/g.elapsed.Seconds())
		} else {
			p, _, err := b.politeRound(f.polite())
			if err != nil {
				return err
			}
			r.alone = append(r.alone, p.latency.quantile(0.99)/1e3)
		}
	}
	return nil
}

// politeRound runs the workloads together and returns what the polite queues and the others did.
func (b *bench) politeRound(list ...workload) (p, others outcome, err error) {
	l, err := newLoad(b.target.reach(false), benchNQN, list...)
	if err != nil {
		return p, others, err
	}
	defer l.close()
	count := func(p, others *outcome) func(s *stream) *outcome {
		return func(s *stream) *outcome {
			if s.w.name == politeName {
				return p
			}
			return others
		}
	}
	if err := l.run(b.duration/4, count(&outcome{}, &outcome{})); err != nil { // warm up
		return p, others, err
	}
	err = l.run(b.duration, count(&p, &others))
	return p, others, err
}

func (r fairResult) check(f fairness) check {
	alone, beside := spreadOf(r.alone), spreadOf(r.beside)
	detail := fmt.Sprintf("; p99 alone %.0f µs, beside %.0f µs, the greedy queue got %.1f kIOPS", alone.Median, beside.Median, spreadOf(r.greedyIOPS).Median/1e3)
	if f.think > 0 {
		return check{What: f.name + ": p99 in µs", Value: beside, Bound: sparseBound, Detail: detail}
	}
	return check{What: f.name + ": p99 over their own alone", Value: spreadOf(over(r.beside, r.alone)), Bound: 2, Detail: detail}
}
