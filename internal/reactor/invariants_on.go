//go:build invariants

package reactor

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// measuring: the environment has NVMF_TURNS, so the time of each step is measured, and functions
// with steps that take too long are listed on standard error when the reactor stops. The time is
// the processor time of the thread, which the reactor has for itself then: other goroutines and
// processes do not count, but interrupts do, with the packets of others that the kernel handles in
// them.
var measuring = os.Getenv("NVMF_TURNS") != ""

// limits are the limits by which longer steps are counted. The first is the bound (ADR 0049).
var limits = [...]time.Duration{100 * time.Microsecond, 200 * time.Microsecond, time.Millisecond}

// The kinds of steps.
const (
	own       = iota
	faulting  // with more than mostFaults page faults, each of which takes a microsecond or more
	beside    // beside Collect, so that they may have helped to collect garbage
	stepKinds // the number of kinds
	// mostFaults is the number of page faults that count as own work.
	mostFaults = 2
)

// overruns are the steps of a function: how many of a kind exceed each limit, the longest of each
// kind, and the number and the time of all.
type overruns struct {
	above   [stepKinds][len(limits)]int
	longest [stepKinds]time.Duration
	steps   int
	time    time.Duration
}

// stepTimes measures the steps of a reactor, by the function called.
type stepTimes struct {
	count  list.Steps
	began  moment
	locked bool
	times  map[function]*overruns
}

// moment is the beginning or the end of a step.
type moment struct {
	time        time.Duration
	faults      int64
	collections uint64
}

// function is a Poller, by its type, or a function.
type function struct {
	poller reflect.Type
	pc     uintptr
}

func (t *stepTimes) begin() {
	t.count.Begin()
	if !measuring {
		return
	}
	if !t.locked { // other goroutines would run on the thread in the middle of a step
		t.locked, t.times = true, map[function]*overruns{}
		runtime.LockOSThread()
	}
	t.began = now()
}

// end ends a step: a function, or a Poller.
func (t *stepTimes) end(step any) {
	if !measuring {
		return
	}
	end := now()
	took, kind := end.time-t.began.time, own
	switch {
	case end.collections%2 != 0 || end.collections != t.began.collections:
		kind = beside
	case end.faults-t.began.faults > mostFaults:
		kind = faulting
	}
	of := function{poller: reflect.TypeOf(step)}
	if v := reflect.ValueOf(step); v.Kind() == reflect.Func {
		of.pc = v.Pointer()
	}
	o := t.times[of]
	if o == nil {
		o = new(overruns)
		t.times[of] = o
	}
	o.steps++
	o.time, o.longest[kind] = o.time+took, max(o.longest[kind], took)
	for i, limit := range limits {
		if took > limit {
			o.above[kind][i]++
		}
	}
}

// report lists the functions of a reactor with steps that took too long.
func (t *stepTimes) report(reactor int) {
	for of, o := range t.times {
		name := fmt.Sprintf("%v.Poll", of.poller)
		if of.pc != 0 {
			name = runtime.FuncForPC(of.pc).Name()
		}
		longest.Lock()
		longest.of[name] = max(longest.of[name], o.longest[own])
		longest.Unlock()
		if max(o.longest[own], o.longest[faulting], o.longest[beside]) <= limits[0] {
			continue
		}
		fmt.Fprintf(os.Stderr, "reactor %d: %s: %v at most, %v with page faults, %v beside "+
			"garbage collection; above %v: %v, of %d in %v\n", reactor, name, o.longest[own],
			o.longest[faulting], o.longest[beside], limits, o.above, o.steps, o.time)
	}
}

var longest = struct {
	sync.Mutex
	of map[string]time.Duration
}{of: map[string]time.Duration{}}

// Longest returns the longest step of a function, or of a Poller, on reactors that have stopped,
// without page faults and garbage collection.
func Longest(name string) time.Duration {
	longest.Lock()
	defer longest.Unlock()
	return longest.of[name]
}

// collections is odd during Collect.
var collections atomic.Uint64

// Collect collects garbage, and steps meanwhile count apart. The caller has turned off other
// collections.
func Collect() {
	collections.Add(1)
	runtime.GC()
	collections.Add(1)
}

// now returns the processor time and the page faults of the calling thread.
func now() (m moment) {
	var ru unix.Rusage
	var ts unix.Timespec
	if unix.Getrusage(unix.RUSAGE_THREAD, &ru) == nil &&
		unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) == nil {
		m.faults, m.time = ru.Minflt, time.Duration(ts.Nano())
	}
	m.collections = collections.Load()
	return m
}
