package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/load"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Some claims cannot be checked from outside nvmf-target: forced garbage collections, bytes
// allocated, bytes copied. For these the subcommand own-target of this program is the target.

// variant selects a target.
type variant struct {
	// spin is reactors.spin; "" is the default, which adapts.
	spin string
	// own selects a target in this program: "collecting" runs the garbage collector every second,
	// "counting" counts allocated bytes, "copying" is built to count copied bytes. "" means
	// nvmf-target.
	own string
}

// ownTarget starts this program as a target.
func ownTarget(cpu int, dir string, v variant) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if v.own == "copying" {
		self = filepath.Join(dir, "copying")
		build := exec.Command("go", "build", "-tags", "invariants", "-o", self,
			"github.com/nvmf-target/nvmf-target/tests/bench")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build a target that counts copies: %w\n%s", err, out)
		}
	}
	return startTarget(cpu, dir, v.spin, self, "own-target", v.own)
}

// ownTargetMain is the main function of that process. It does the same as "nvmf-target serve
// --config FILE". At SIGUSR1 it writes its counters beside the file.
func ownTargetMain(args []string) error {
	if len(args) != 4 {
		return errors.New("own-target takes: VARIANT serve --config FILE")
	}
	kind, config := args[0], args[3]
	requests := make(chan os.Signal, 1)
	signal.Notify(requests, syscall.SIGUSR1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if kind == "collecting" {
					runtime.GC()
				}
			case <-requests:
				writeCounters(config + countersSuffix)
			}
		}
	}()
	return app.Serve(config, "bench", os.Stdout, os.Stderr)
}

const countersSuffix = ".counters"

// writeCounters writes the bytes allocated and the bytes of payload copied so far to a file. The
// file is complete when it appears.
func writeCounters(name string) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	copied, _ := mem.Copied()
	if os.WriteFile(name+".new", fmt.Appendf(nil, "%d %d", samples[0].Value.Uint64(), copied),
		0o600) == nil {
		_ = os.Rename(name+".new", name)
	}
}

// counters returns the counters of an own target.
func (s *server) counters() (allocated, copied float64, err error) {
	name := s.config + countersSuffix
	if err := s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return 0, 0, err
	}
	defer func() { _ = os.Remove(name) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(name)
		if err == nil {
			_, err = fmt.Sscan(string(text), &allocated, &copied)
			return allocated, copied, err
		}
		if time.Now().After(deadline) {
			return 0, 0, err
		}
	}
}

// countedWorkloads are the rows with counts of allocated and copied bytes.
func countedWorkloads() []workload {
	return []workload{
		random4K("counted: 4K random read QD 32", 32),
		writes(random4K("counted: 4K random write QD 32", 32)),
		sequential("counted: 128K read QD 16", 128<<10, 100),
		sequential("counted: 128K write QD 16", 128<<10, 0),
	}
}

// countRound counts the bytes allocated and copied per I/O.
func (b *bench) countRound(w workload) error {
	f := figures{}
	for _, own := range []string{"counting", "copying"} {
		s, err := b.server(variant{own: own})
		if err != nil {
			return err
		}
		allocated, copied, ops, err := count(s, w, min(b.duration, time.Second))
		if err != nil {
			return err
		}
		if own == "counting" {
			f["allocated_bytes"] = allocated / ops
		} else {
			f["copies"] = copied / ops / float64(w.Size)
		}
	}
	b.record(w, whoTarget, f)
	return nil
}

// count returns the bytes that a target allocates and copies while a workload runs for d.
func count(s *server, w workload, d time.Duration) (allocated, copied, ops float64, err error) {
	l, err := connect(s.transport(false), w.Workload)
	if err != nil {
		return 0, 0, 0, err
	}
	defer l.Close()
	var warmUp, o load.Outcome
	if err := l.Run(d/2, into(&warmUp)); err != nil {
		return 0, 0, 0, err
	}
	allocated0, copied0, err := s.counters()
	if err != nil {
		return 0, 0, 0, err
	}
	if err := l.Run(d, into(&o)); err != nil {
		return 0, 0, 0, err
	}
	allocated, copied, err = s.counters()
	return allocated - allocated0, copied - copied0, float64(o.Ops()), err
}

// idleName is the row of an idle target.
const idleName = "idle: 1024 queues connected"

// idleRound measures the CPU time of an idle target.
func (b *bench) idleRound() error {
	s, err := b.server(variant{})
	if err != nil {
		return err
	}
	l, err := connect(s.transport(false), idleQueues(1024))
	if err != nil {
		return err
	}
	defer l.Close()
	time.Sleep(time.Second) // until the work of connecting is done
	before, err := s.runTime()
	if err != nil {
		return err
	}
	start := time.Now()
	time.Sleep(max(b.duration, 5*time.Second)) // includes periodic work
	after, err := s.runTime()
	if err != nil {
		return err
	}
	b.record(random4K(idleName, 1), whoTarget,
		figures{"cpu_percent": 100 * float64(after-before) / float64(time.Since(start))})
	return nil
}

// runTime returns the CPU time of all threads of the process, with a finer resolution than cpuTime
// (the first field of schedstat, in nanoseconds).
func (s *server) runTime() (time.Duration, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.cmd.Process.Pid))
	if err != nil || len(names) == 0 {
		return 0, errors.Join(errors.New("no schedstat of the target"), err)
	}
	var sum time.Duration
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}
