package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	measure "github.com/nvmf-target/nvmf-target/internal/bench"
	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/internal/load"
)

// nativeGroup is the only group of native measurements.
const nativeGroup = ""

// bench is one native run over loopback TCP.
type bench struct {
	options
	dir      string
	servers  map[variant]*server // running servers; each is started on first use
	records  []record
	loads    []float64
	repeated int // measurements repeated because the latency of the machine had changed
}

// run measures every workload, prints the table and writes the files.
func run(o options) error {
	if n := runtime.NumCPU(); n < 2 {
		return fmt.Errorf("two CPUs are needed, for the target and for the load, not %d", n)
	}
	b := &bench{options: o, servers: map[variant]*server{}}
	steps, err := b.steps()
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "nvmf-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if err := pin(o.clientCPU); err != nil {
		return err
	}
	err = b.measure(steps)
	for _, s := range b.servers {
		if err = errors.Join(err, s.stop()); err != nil {
			err = fmt.Errorf("%w\nlog of the target:\n%s", err, s.log.String())
		}
	}
	if err != nil {
		return err
	}
	p := newReport("NVMe/TCP over loopback, RAM namespace, target on one CPU, load on another",
		"floor", b.records, b.loads)
	p.Rounds, p.Seconds = o.rounds, o.duration.Seconds()
	p.evaluate(nativeBounds(), b.records, o.filter == "")
	p.Notes = []string{
		"floor: bare sockets with the same messages, both sides polling. " +
			"The congestion control of all connections is " + congestion + ".",
		fmt.Sprintf("Latency at depth 1 depends on where the machine runs its CPUs. The target is "+
			"measured between two floors that agree; repeated measurements: %d.", b.repeated),
	}
	if o.out != "" {
		if err := p.writeFiles(o.out, "tcp"); err != nil {
			return err
		}
	}
	return p.writeTable(os.Stdout)
}

// step measures one row in a round.
type step struct {
	name    string
	measure func(round int) error
}

// steps are the selected rows.
func (b *bench) steps() ([]step, error) {
	list, err := workloads(b.filter, b.all)
	if err != nil {
		return nil, err
	}
	var steps []step
	for _, w := range list {
		steps = append(steps,
			step{w.Name, func(round int) error { return b.workloadRound(w, round) }})
	}
	re := regexp.MustCompile(b.filter) // valid, since workloads has compiled it
	var names []string
	add := func(name string, measure func(round int) error) {
		names = append(names, name)
		if re.MatchString(name) {
			steps = append(steps, step{name, measure})
		}
	}
	for _, n := range rotations {
		add(rotationName(n), func(int) error { return b.rotationRound(n) })
	}
	for _, f := range fairnessCases() {
		add(f.name, func(round int) error { return b.fairnessRound(f, round) })
	}
	add(idleName, func(int) error { return b.idleRound() })
	for _, w := range countedWorkloads() {
		add(w.Name, func(int) error { return b.countRound(w) })
	}
	if len(steps) == 0 {
		return nil, noMatch(b.filter, names)
	}
	return steps, nil
}

// noMatch is the error if no workload is selected. more are names besides the workloads.
func noMatch(filter string, more []string) error {
	all, _ := workloads("", true)
	var names []string
	for _, w := range all {
		names = append(names, w.Name)
	}
	names = append(names, more...)
	return fmt.Errorf("no workload matches the regular expression %q; there are:\n  %s", filter,
		strings.Join(names, "\n  "))
}

// measure runs all rounds. Each round measures all rows, so that a slow phase of the machine
// affects all of them.
func (b *bench) measure(steps []step) error {
	start := time.Now()
	for round := range b.rounds {
		b.loads = append(b.loads, loadAverage())
		fmt.Fprintf(os.Stderr, "round %d of %d, %v since the start, load average %.2f\n", round+1,
			b.rounds, time.Since(start).Round(time.Second), b.loads[round])
		for _, s := range steps {
			if err := s.measure(round); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (b *bench) record(w workload, who string, f figures) {
	b.records = append(b.records,
		record{Group: nativeGroup, Workload: w.Name, Size: w.Size, Who: who, Figures: f})
}

// workloadRound measures floor and target, in alternating order.
func (b *bench) workloadRound(w workload, round int) error {
	if w.alone() {
		return b.latencyRound(w)
	}
	var floor, target figures
	sides := []func() error{
		func() (err error) { floor, err = measureFloor(b.options, w); return err },
		func() (err error) { target, err = b.measureTarget(w); return err },
	}
	if round%2 == 1 {
		slices.Reverse(sides)
	}
	for _, side := range sides {
		if err := side(); err != nil {
			return err
		}
	}
	b.record(w, whoReference, floor)
	b.record(w, whoTarget, target)
	return nil
}

const (
	maxFloorRatio  = 1.2 // of two floors that count as equal
	latencyRetries = 3
)

// latencyRound measures one I/O at a time. The hypervisor may move the CPUs of a virtual machine
// closer together or apart at any time, which changes the latency more than anything measured here.
// So the target is measured between two halves of the floor, and measured again if they differ.
func (b *bench) latencyRound(w workload) error {
	half := b.options
	half.duration /= 2
	for try := 0; ; try++ {
		before, err := measureFloor(half, w)
		if err != nil {
			return err
		}
		target, err := b.measureTarget(w)
		if err != nil {
			return err
		}
		after, err := measureFloor(half, w)
		if err != nil {
			return err
		}
		first, second := before["iops"], after["iops"]
		if max(first, second) > maxFloorRatio*min(first, second) && try < latencyRetries {
			b.repeated++
			continue
		}
		floor := (first + second) / 2
		target["mean_us"] = 1e6 / target["iops"]
		b.record(w, whoReference, figures{"iops": floor, "mean_us": 1e6 / floor})
		b.record(w, whoTarget, target)
		return nil
	}
}

// measureFloor measures the IOPS of bare sockets with the messages of w, and the latency if w.timed
// is set.
func measureFloor(o options, w workload) (figures, error) {
	t := floorTraffic{Pattern: w.pattern(), depth: w.Depth, Conns: w.Queues, Cold: w.cold}
	s, err := startFloor(o.serverCPU, t)
	if err != nil {
		return nil, err
	}
	if w.timed {
		t.latency = newFloorLatency(w.Depth)
	}
	iops, err := loadFloor(s.port, anyCPU, t, o.duration)
	f := figures{}
	if w.timed {
		f = figuresOfLatency(&t.latency.Histogram, o.duration)
	}
	f["iops"] = iops
	return f, errors.Join(err, s.stop())
}

// into counts all streams in one outcome.
func into(o *load.Outcome) func(*load.Stream) *load.Outcome {
	return func(*load.Stream) *load.Outcome { return o }
}

func iops(o *load.Outcome) float64 { return float64(o.Ops()) / o.Elapsed.Seconds() }

func figuresOf(o *load.Outcome) figures { return figuresOfLatency(o.Latency(), o.Elapsed) }

// figuresOfLatency returns the figures of "nvmf-target bench" under the same names.
func figuresOfLatency(h *histogram.Histogram, elapsed time.Duration) figures {
	f := measure.NewFigures(h, 0, elapsed)
	return figures{
		"iops": f.IOPS, "p50_us": f.P50, "p99_us": f.P99, "p99.9_us": f.P999, "max_us": f.Max,
	}
}

// server returns the target of a variant, and starts it if it is not running.
func (b *bench) server(v variant) (*server, error) {
	if s := b.servers[v]; s != nil {
		return s, nil
	}
	var s *server
	var err error
	if v.own == "" {
		s, err = startTarget(b.serverCPU, b.dir, v.spin, b.target)
	} else {
		s, err = ownTarget(b.serverCPU, b.dir, v)
	}
	if err == nil {
		b.servers[v] = s
	}
	return s, err
}

func (b *bench) measureTarget(w workload) (figures, error) {
	s, err := b.server(w.on)
	if err != nil {
		return nil, err
	}
	l, err := connect(s.transport(w.digests), w.Workload)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if w.beside > 0 {
		idle, err := connect(s.transport(w.digests), idleQueues(w.beside))
		if err != nil {
			return nil, err
		}
		defer idle.Close()
	}
	var warmUp, o load.Outcome
	if err := l.Run(min(time.Second, b.duration/2), into(&warmUp)); err != nil {
		return nil, err
	}
	user, system, err := s.cpuTime()
	if err != nil {
		return nil, err
	}
	if err := l.Run(b.duration, into(&o)); err != nil {
		return nil, err
	}
	userAfter, systemAfter, err := s.cpuTime()
	if err != nil {
		return nil, err
	}
	f, ops := figuresOf(&o), float64(o.Ops())
	f["user_us"] = (userAfter - user) * 1e6 / ops
	f["system_us"] = (systemAfter - system) * 1e6 / ops
	return f, nil
}

// loadAverage returns the load average of the machine over the last minute.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}
