package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/load"
)

// Progress describes a run in progress.
type Progress struct {
	Name       string
	Elapsed    time.Duration
	Of         time.Duration // 0 if the end is unknown
	Ops, Bytes uint64
}

// every is the time between two reports of progress.
const every = 500 * time.Millisecond

// errInterrupted is the error of a report after Ctrl-C.
var errInterrupted = errors.New("interrupted")

// bench is one call of Measure.
type bench struct {
	c        Connection
	s        Settings
	o        load.Options
	report   *Report
	progress func(Progress)
	stop     atomic.Bool
}

// Measure connects, carries out the settings, and disconnects. It calls progress, if not nil, from
// another goroutine twice a second, and stops when ctx ends. With an error the report may be nil.
func Measure(ctx context.Context, c Connection, s Settings, version string,
	progress func(Progress),
) (*Report, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	b := &bench{c: c, s: s, progress: progress}
	if b.s.Seed == 0 {
		b.s.Seed = 1
		if s.Verify { // to tell it from data of an earlier run
			b.s.Seed = rand.Uint64()>>32 | 1
		}
	}
	b.s.Threads = cmp.Or(b.s.Threads, max(1, runtime.NumCPU()/2))
	var err error
	if b.o, err = c.options(ctx); err != nil {
		return nil, err
	}
	t, err := c.probe(ctx, &b.o)
	if err != nil {
		return nil, err
	}
	stages, err := b.s.stages(t.Bytes)
	if err != nil {
		return nil, err
	}
	if err := allowed(t, stages, s.DestroyData); err != nil {
		return nil, err
	}
	b.report = &Report{
		Format: format, Version: version, Began: time.Now().UTC().Truncate(time.Second),
		Machine: ThisMachine(), Target: t, Settings: b.s,
	}
	defer context.AfterFunc(ctx, func() { b.stop.Store(true) })()
	for i := range stages {
		if err = b.stage(ctx, &stages[i]); err != nil {
			b.report.Error = err.Error()
			break
		}
	}
	return b.report, err
}

// maxBlocks is the largest number of blocks in NLB (NVM section 3.2.4).
const maxBlocks = 1 << 16

// allowed returns an error if the target or the user does not allow a stage.
func allowed(t *Target, stages []stage, destroy bool) error {
	for i := range stages {
		for _, w := range stages[i].workloads {
			largest := w.Size
			for _, s := range w.Sizes {
				largest = max(largest, s.Size)
			}
			switch {
			case w.Size%t.BlockSize != 0:
				return fmt.Errorf("I/Os of %d bytes: the namespace has blocks of %d bytes", w.Size,
					t.BlockSize)
			case t.maxTransfer > 0 && largest > t.maxTransfer:
				return fmt.Errorf("I/Os of %d bytes: the target takes at most %d (MDTS)", largest,
					t.maxTransfer)
			case largest/t.BlockSize > maxBlocks:
				return fmt.Errorf("I/Os of %d bytes: a command has at most %d blocks of %d bytes",
					largest, maxBlocks, t.BlockSize)
			case w.Depth > t.maxDepth:
				return fmt.Errorf("--iodepth %d: the target has at most %d commands on a queue: "+
					"use more --numjobs", w.Depth, t.maxDepth)
			}
		}
		if stages[i].writes() && !destroy {
			return fmt.Errorf("this would overwrite %s. Add --destroy-data to do that", t)
		}
	}
	return nil
}

// stage connects the queues of a stage and carries out its runs.
func (b *bench) stage(ctx context.Context, st *stage) error {
	connecting, cancel := context.WithTimeout(ctx, b.c.Timeout)
	l, err := load.New(connecting, b.o, st.workloads...)
	cancel()
	if err != nil {
		return b.c.explain(err)
	}
	defer l.Close()
	runs := st.runs
	if b.s.Ramp > 0 && !b.s.Verify {
		runs = append([]run{{name: ramp, d: b.s.Ramp}}, runs...)
	}
	for _, r := range runs {
		if b.s.Verify {
			l.Pass(r.pass, r.write)
		}
		if err = b.run(ctx, l, st, r); err != nil {
			break
		}
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		return err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.c.Timeout)
	defer cancel()
	if failed := l.Shutdown(ending); failed != nil {
		err = errors.Join(err, fmt.Errorf("disconnect: %w", failed))
	}
	return err
}

// ramp is the name of the first run, which is left out of the report.
const ramp = "ramp"

// run runs all threads and adds their results to the report, even after an error.
func (b *bench) run(ctx context.Context, l *load.Load, st *stage, r run) error {
	threads := l.Threads(b.s.Threads, &b.stop)
	outcomes := make([][]load.Outcome, len(threads)) // by thread and workload
	failed := make([]error, len(threads))
	var wg sync.WaitGroup
	user, system := cpuTime()
	start := time.Now()
	for i, t := range threads {
		outcomes[i] = make([]load.Outcome, len(st.workloads))
		t.Series = load.NewSeries()
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			failed[i] = t.Run(r.d, func(s *load.Stream) *load.Outcome {
				for k := range st.workloads {
					if s.Workload().Name == st.workloads[k].Name {
						return &outcomes[i][k]
					}
				}
				panic("a stream of no workload")
			})
			if failed[i] != nil {
				b.stop.Store(true) // stop the others
			}
		})
	}
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		b.watch(threads, r, start, done)
	}()
	wg.Wait()
	close(done)
	<-watched
	if r.name != ramp {
		u, s := cpuTime()
		out := b.add(st, r, threads, outcomes)
		out.User, out.System = u-user, s-system
	}
	if err := errors.Join(failed...); err != nil || ctx.Err() == nil {
		return err
	}
	return errInterrupted
}

func (b *bench) add(st *stage, r run, threads []*load.Thread, outcomes [][]load.Outcome) *Run {
	out := &Run{Name: r.name}
	var elapsed time.Duration
	series := threads[0].Series
	for i := range threads {
		if i > 0 {
			series.Merge(threads[i].Series)
		}
		for k := range outcomes[i] {
			elapsed = max(elapsed, outcomes[i][k].Elapsed)
			if i > 0 {
				outcomes[0][k].Merge(&outcomes[i][k])
			}
		}
	}
	for k, w := range st.workloads {
		o := &outcomes[0][k]
		out.Groups = append(out.Groups, &Group{
			Name: w.Name, Queues: w.Queues, Depth: w.Depth, Late: o.Late,
			Reads:  figures(&o.Counts[load.Read], elapsed),
			Writes: figures(&o.Counts[load.Write], elapsed),
			Flush:  figures(&o.Counts[load.Flush], elapsed),
		})
	}
	out.Seconds, out.Series = elapsed.Seconds(), points(series, elapsed)
	b.report.Runs = append(b.report.Runs, out)
	return out
}

// watch calls progress until a run ends.
func (b *bench) watch(threads []*load.Thread, r run, start time.Time, done <-chan struct{}) {
	if b.progress == nil {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			p := Progress{Name: r.name, Elapsed: now.Sub(start), Of: r.d}
			for _, t := range threads {
				p.Ops += t.Series.Ops.Load()
				p.Bytes += t.Series.Bytes.Load()
			}
			b.progress(p)
		}
	}
}

// cpuTime returns the user and system time of this process in seconds.
func cpuTime() (user, system float64) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano()).Seconds(), time.Duration(u.Stime.Nano()).Seconds()
}
