//go:build invariants

package reactor

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// measuring: the environment has NVMF_TURNS, so the time of each step is measured, and functions
// with steps that take too long are listed on standard error when the reactor stops. The time is
// the processor time of the thread, which the reactor has for itself then: other goroutines and
// processes do not count, but garbage collection does, and interrupts, with the packets of others
// that the kernel handles in them.
var measuring = os.Getenv("NVMF_TURNS") != ""

// limits are the limits by which longer steps are counted. The first is the bound (ADR 0049).
var limits = [...]time.Duration{100 * time.Microsecond, 200 * time.Microsecond, time.Millisecond}

// overruns are the steps of a function: how many exceed each limit, of how many, with how much time
// in all, and the longest.
type overruns struct {
	above         [len(limits)]int
	steps         int
	time, longest time.Duration
}

// stepTimes measures the steps of a reactor, by the function called.
type stepTimes struct {
	count  list.Steps
	began  time.Duration
	locked bool
	times  map[function]*overruns
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
	t.began = cpuTime()
}

// end ends a step: a function, or a Poller.
func (t *stepTimes) end(step any) {
	if !measuring {
		return
	}
	took := cpuTime() - t.began
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
	o.time, o.longest = o.time+took, max(o.longest, took)
	for i, limit := range limits {
		if took > limit {
			o.above[i]++
		}
	}
}

// report lists the functions of a reactor with steps that took too long.
func (t *stepTimes) report(reactor int) {
	for of, o := range t.times {
		if o.above[0] == 0 {
			continue
		}
		name := fmt.Sprintf("%v.Poll", of.poller)
		if of.pc != 0 {
			name = runtime.FuncForPC(of.pc).Name()
		}
		fmt.Fprintf(os.Stderr, "reactor %d: %v at most, %v above %v, of %d in %v: %s\n",
			reactor, o.longest, o.above, limits, o.steps, o.time, name)
	}
}

// cpuTime returns the processor time of the calling thread.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
