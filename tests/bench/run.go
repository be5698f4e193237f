package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const nativeGroup = "tcp"

// bench is one run natively over loopback TCP.
type bench struct {
	options
	dir        string
	target     *server
	collecting *server // the target whose garbage collector runs every second; nil until it is needed
	records    []record
	loads      []float64
}

// run measures every workload, prints the table and writes the files.
func run(o options) error {
	if runtime.NumCPU() < 2 {
		return fmt.Errorf("needs two CPUs, one for the target and one for the load; this machine has %d", runtime.NumCPU())
	}
	list, err := workloads(o.filter, o.all)
	if err != nil {
		return err
	}
	fair, err := fairnessCases(o.filter)
	if err != nil {
		return err
	}
	if len(list)+len(fair) == 0 {
		return fmt.Errorf("no workload matches %q", o.filter)
	}
	b := &bench{options: o}
	if b.dir, err = os.MkdirTemp("", "nvmf-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if err := pin(o.clients); err != nil {
		return err
	}
	if b.target, err = startTarget(o.servers, b.dir, o.target); err != nil {
		return err
	}
	checks, err := b.measure(list, fair)
	for _, s := range []*server{b.target, b.collecting} {
		if s == nil {
			continue
		}
		if err = errors.Join(err, s.stop()); err != nil {
			err = fmt.Errorf("%w\nlog of the target:\n%s", err, s.log.String())
		}
	}
	if err != nil {
		return err
	}
	p, err := newReport("NVMe/TCP over loopback, RAM namespace, target on one CPU, load on another", "floor", b.records, b.loads, o.rounds, o.duration)
	if err != nil {
		return err
	}
	for i := range p.Rows {
		p.Rows[i].Group = "" // there is only one
		if k := slices.IndexFunc(list, func(w workload) bool { return w.name == p.Rows[i].Workload }); k >= 0 {
			p.Rows[i].AtLeast = list[k].atLeast
		}
	}
	p.Checks = append(b.checks(), checks...)
	p.Notes = []string{"floor: bare sockets with the same messages, both sides polling."}
	if o.out != "" {
		if err := p.writeFiles(o.out, "tcp"); err != nil {
			return err
		}
	}
	return p.writeTable(os.Stdout)
}

// measure takes all rounds. Each goes through all workloads, so that a mood of the machine is spread over all of them; floor and target
// follow one another, in turns first.
func (b *bench) measure(list []workload, fair []fairness) ([]check, error) {
	results := make([]fairResult, len(fair))
	for round := range b.rounds {
		b.loads = append(b.loads, loadAverage())
		fmt.Fprintf(os.Stderr, "round %d of %d, load average %.2f\n", round+1, b.rounds, b.loads[round])
		for _, w := range list {
			sides := []func(workload) error{b.floorRound, b.targetRound}
			if round%2 == 1 {
				slices.Reverse(sides)
			}
			for _, side := range sides {
				if err := side(w); err != nil {
					return nil, fmt.Errorf("%s: %w", w.name, err)
				}
			}
		}
		for i, f := range fair {
			if err := b.fairnessRound(f, round, &results[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	var checks []check
	for i, f := range fair {
		checks = append(checks, results[i].check(f))
	}
	return checks, nil
}

func (b *bench) record(w workload, who string, f figures) {
	b.records = append(b.records, record{Group: nativeGroup, Workload: w.name, Size: w.size, Who: who, Figures: f})
}

func (b *bench) floorRound(w workload) error {
	iops, err := measureFloor(b.options, w)
	if err == nil {
		b.record(w, whoReference, figures{"iops": iops})
	}
	return err
}

// measureFloor is how many requests of w's shape bare sockets answer in a second.
func measureFloor(o options, w workload) (float64, error) {
	t := floorTraffic{pattern: w.pattern(), depth: w.depth, conns: w.queues}
	s, err := startFloor(o.servers, t)
	if err != nil {
		return 0, err
	}
	iops, err := loadFloor(s.port, anyCPU, t, o.duration)
	return iops, errors.Join(err, s.stop())
}

func (b *bench) targetRound(w workload) error {
	s := b.target
	if w.gc {
		if b.collecting == nil {
			var err error
			if b.collecting, err = startCollectingTarget(b.servers, b.dir); err != nil {
				return err
			}
		}
		s = b.collecting
	}
	f, err := measureTarget(s.reach(w.digests), benchNQN, w, b.duration, s)
	if err == nil {
		b.record(w, whoTarget, f)
	}
	return err
}

// measureTarget runs one workload for d after a warm-up. s is the process whose CPU time is counted, or nil.
func measureTarget(t host.Transport, nqn string, w workload, d time.Duration, s *server) (figures, error) {
	l, err := newLoad(t, nqn, w)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if err := l.run(min(time.Second, d/2), func(*stream) *outcome { return &outcome{} }); err != nil { // warm up
		return nil, err
	}
	var user, system, userAfter, systemAfter float64
	if s != nil {
		if user, system, err = s.cpuTime(); err != nil {
			return nil, err
		}
	}
	var o outcome
	if err := l.run(d, func(*stream) *outcome { return &o }); err != nil {
		return nil, err
	}
	f := o.figures()
	if s != nil {
		if userAfter, systemAfter, err = s.cpuTime(); err != nil {
			return nil, err
		}
		f["user_us"], f["system_us"] = (userAfter-user)*1e6/float64(o.ops), (systemAfter-system)*1e6/float64(o.ops)
	}
	return f, nil
}

// checks are the claims that compare rows with one another.
func (b *bench) checks() []check {
	of := func(workload, who, figure string) []float64 {
		return series(b.records, nativeGroup, workload, who, figure)
	}
	list := []check{}
	add := func(what string, values []float64, bound float64, atLeast bool) {
		if len(values) > 0 {
			list = append(list, check{What: what, Value: spreadOf(values), Bound: bound, AtLeast: atLeast})
		}
	}
	add("4K random read QD 32: digests over none", over(of("4K random read QD 32 digests", whoTarget, "iops"), of("4K random read QD 32", whoTarget, "iops")), 0.75, true)
	add("4K random read QD 32, garbage collection each second: p99.9 over p50", over(of(gcName, whoTarget, "p99.9_us"), of(gcName, whoTarget, "p50_us")), 3, false)
	add("1023 idle connections beside one over none", over(of(besideIdle, whoTarget, "iops"), of("4K random read QD 32", whoTarget, "iops")), 0.85, true)
	one, many := connectionsName(1), connectionsName(inFlight)
	add(fmt.Sprintf("%d connections over 1, same depth in all: what the target keeps", inFlight), over(of(many, whoTarget, "iops"), of(one, whoTarget, "iops")), 0.85, true)
	add("the same, each as a share of its floor", over(over(of(many, whoTarget, "iops"), of(many, whoReference, "iops")), over(of(one, whoTarget, "iops"), of(one, whoReference, "iops"))), 0.85, true)
	return list
}

// loadAverage is how busy the machine was in the last minute.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}
