//go:build invariants

package reactor

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// stepMost is the limit of the processor time of one step of a reactor.
const stepMost = 100 * time.Microsecond

// measuring: the environment has NVMF_TURNS, so the time of each step is measured, and steps beyond
// stepMost are listed on standard error when the reactor stops. The time is the processor time of
// the thread, which the reactor has for itself then: other goroutines and processes do not count,
// but garbage collection does, and packets that the kernel handles meanwhile.
var measuring = os.Getenv("NVMF_TURNS") != ""

// stepTimes has the steps of a reactor that took too long, by the function called.
type stepTimes struct {
	count  list.Steps
	began  time.Duration
	locked bool
	over   map[string]*overrun
}

// overrun is the number of times that a function took too long, and its longest time.
type overrun struct {
	count   int
	longest time.Duration
}

func (t *stepTimes) begin() {
	t.count.Begin()
	if !measuring {
		return
	}
	if !t.locked { // other goroutines would run on the thread in the middle of a step
		t.locked = true
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
	if took <= stepMost {
		return
	}
	name := fmt.Sprintf("%T.Poll", step)
	if v := reflect.ValueOf(step); v.Kind() == reflect.Func {
		name = runtime.FuncForPC(v.Pointer()).Name()
	}
	if t.over == nil {
		t.over = map[string]*overrun{}
	}
	o := t.over[name]
	if o == nil {
		o = new(overrun)
		t.over[name] = o
	}
	o.count++
	o.longest = max(o.longest, took)
}

// report lists the overruns of a reactor.
func (t *stepTimes) report(reactor int) {
	var lines []string
	for name, o := range t.over {
		lines = append(lines, fmt.Sprintf("reactor %d: %8v at most, %5d steps above %v: %s\n",
			reactor, o.longest.Round(time.Microsecond), o.count, stepMost, name))
	}
	slices.Sort(lines)
	for _, l := range lines {
		fmt.Fprint(os.Stderr, l)
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
