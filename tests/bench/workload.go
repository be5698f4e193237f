package main

import (
	"fmt"
	"regexp"

	"github.com/nvmf-target/nvmf-target/internal/load"
)

// workload is one row of the table.
type workload struct {
	load.Workload
	digests bool
	// The floor receives into a large area, like the target, instead of one buffer that stays in
	// the cache.
	cold   bool
	timed  bool    // the latency of the floor is measured, too
	beside int     // further queues of the target, which are idle
	on     variant // of the target
	extra  bool    // only with -all
}

// idleQueues are n queues for a load that is not run.
func idleQueues(n int) load.Workload { return load.Workload{Size: 4 << 10, Depth: 1, Queues: n} }

// pattern returns the same traffic for the floor.
func (w workload) pattern() []floorShape {
	if w.Reads%100 != 0 {
		n := w.Reads / 10
		var p []floorShape
		for i := range 10 { // evenly mixed
			if (i+1)*n/10 > i*n/10 {
				p = append(p, readFloor(w.Size))
			} else {
				p = append(p, writeFloor(w.Size))
			}
		}
		return p
	}
	if w.Reads == 0 {
		return []floorShape{writeFloor(w.Size)}
	}
	return []floorShape{readFloor(w.Size)}
}

// besideIdle is the row with many idle queues.
const besideIdle = "4K random read QD 32 beside 1023 idle connections"

const inFlight = 1024 // of the rows that differ only in the number of connections

var connections = []int{1, 16, 64, 256, 1024}

// Rows with a special target or floor.
const (
	gcName      = "4K random read QD 32 GC each second"
	pollingName = "4K random read QD 1 polling"
	asleepName  = "4K random read QD 1 never polling"
	digestsName = "4K random read QD 32 digests"
	writeName   = "128K write QD 16"
	coldName    = "128K write QD 16, floor receives into a large area"
)

// alone reports whether there is only one I/O at a time, so that the row measures latency.
func (w workload) alone() bool { return w.Depth == 1 && w.Queues == 1 }

func connectionsName(queues int) string {
	return fmt.Sprintf("4K random read, %d in flight on %d connections", inFlight, queues)
}

// workloads returns the rows with names that match filter. Without a filter, rows that need -all
// are left out unless all is set.
func workloads(filter string, all bool) ([]workload, error) {
	re, err := regexp.Compile(filter)
	if err != nil {
		return nil, err
	}
	var list []workload
	for _, queues := range []int{1, 4, 16} {
		suffix := ""
		if queues > 1 {
			suffix = fmt.Sprintf(" on %d queues", queues)
		}
		for _, depth := range []int{1, 32, 128} {
			for _, kind := range []struct {
				name  string
				reads int
			}{{"read", 100}, {"write", 0}, {"70/30", 70}} {
				w := random4K(fmt.Sprintf("4K random %s QD %d%s", kind.name, depth, suffix), depth)
				w.Queues, w.Reads, w.extra = queues, kind.reads, queues > 1
				list = append(list, w)
			}
		}
		for _, size := range []int{128 << 10, 1 << 20} {
			for _, reads := range []int{100, 0} {
				w := sequential("", size, reads)
				w.Queues, w.extra = queues, queues > 1
				w.Name = fmt.Sprintf("%s %s QD 16%s", sizeName(size),
					map[int]string{100: "read", 0: "write"}[reads], suffix)
				list = append(list, w)
			}
		}
	}
	polling, asleep := random4K(pollingName, 1), random4K(asleepName, 1)
	polling.on.spin, asleep.on.spin = "100ms", "0s"
	cold := sequential(coldName, 128<<10, 0)
	cold.cold = true
	digests := random4K(digestsName, 32)
	digests.digests = true
	dataset := random4K("dataset loading: 256K random read, 8 jobs QD 4", 4)
	dataset.Size, dataset.Queues = 256<<10, 8
	checkpoint := sequential("checkpoint: 1M write QD 16, flush each 64M", 1<<20, 0)
	checkpoint.Burst = 64
	gc := random4K(gcName, 32)
	gc.timed, gc.on.own = true, "collecting"
	idle := random4K(besideIdle, 32)
	idle.beside = 1023
	list = append(list, polling, asleep, cold, digests, dataset, checkpoint, gc, idle)
	for _, queues := range connections {
		w := random4K(connectionsName(queues), inFlight/queues)
		w.Queues = queues
		list = append(list, w)
	}
	var kept []workload
	for _, w := range list {
		if re.MatchString(w.Name) && (all || filter != "" || !w.extra) {
			kept = append(kept, w)
		}
	}
	return kept, nil
}

// random4K reads 4 KiB at random on one queue.
func random4K(name string, depth int) workload {
	return workload{Workload: load.Workload{
		Name: name, Size: 4 << 10, Depth: depth, Queues: 1, Reads: 100,
	}}
}

func writes(w workload) workload {
	w.Reads = 0
	return w
}

// sequential reads or writes in order on one queue.
func sequential(name string, size, reads int) workload {
	return workload{Workload: load.Workload{
		Name: name, Size: size, Depth: 16, Queues: 1, Reads: reads, Sequential: true,
	}}
}

func sizeName(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%dM", bytes>>20)
	}
	return fmt.Sprintf("%dK", bytes>>10)
}
