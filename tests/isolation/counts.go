package isolation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// counts has the resources in use by the process and the target.
type counts struct {
	goroutines, descriptors int
	heap                    uint64 // bytes in use, after a collection

	dataMemory  int   // bytes of the reactors' data memory that are allocated
	timers      int   // of the reactors
	queueMemory int64 // bytes
	connections int
	controllers int
}

// Allowances for counts that fluctuate by themselves.
const (
	slackGoroutines  = 4
	slackDescriptors = 4
	slackTimers      = 8
	slackHeap        = 16 << 20
)

// process counts the resources of the process.
func (e *env) process() counts {
	list, err := os.ReadDir("/proc/self/fd")
	e.must(err)
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return counts{
		goroutines: runtime.NumGoroutine(), descriptors: len(list), heap: m.HeapAlloc,
	}
}

// count also counts the resources of the target.
func (e *env) count() counts {
	c := e.process()
	c.dataMemory, c.timers = e.reactors()
	for _, t := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		u := e.server.Transport(t).Usage()
		c.queueMemory += u.Memory
		c.connections += u.Connections
	}
	c.controllers = len(e.server.Target().Controllers())
	return c
}

// reactors returns the data memory that is allocated, and the number of timers.
func (e *env) reactors() (memory, timers int) {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	list, err := e.server.Reactors(ctx)
	e.must(err)
	for _, r := range list {
		memory += int(r.MemoryUsedBytes)
		timers += r.Timers
	}
	return memory, timers
}

// above returns an error that names the counts above the baseline, nil if there are none.
func (c counts) above(base counts) error {
	var errs []error
	for _, v := range []struct {
		what              string
		have, base, slack int64
	}{
		{"goroutines", int64(c.goroutines), int64(base.goroutines), slackGoroutines},
		{"descriptors", int64(c.descriptors), int64(base.descriptors), slackDescriptors},
		{"bytes of heap", int64(c.heap), int64(base.heap), slackHeap},
		{"bytes of data memory", int64(c.dataMemory), int64(base.dataMemory), 0},
		{"timers", int64(c.timers), int64(base.timers), slackTimers},
		{"bytes of queue memory", c.queueMemory, base.queueMemory, 0},
		{"connections", int64(c.connections), int64(base.connections), 0},
		{"controllers", int64(c.controllers), int64(base.controllers), 0},
	} {
		if v.have > v.base+v.slack {
			errs = append(errs, fmt.Errorf("%d %s, %d before", v.have, v.what, v.base))
		}
	}
	return errors.Join(errs...)
}
