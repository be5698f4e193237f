package main

import (
	"fmt"
	"regexp"
	"time"
)

// workload is one row of the table: the I/O of each of its queues.
type workload struct {
	name       string
	size       int // bytes of an I/O
	depth      int // I/Os in flight on each queue
	queues     int
	connected  int           // further queues, which are idle
	reads      int           // percent; the others are writes
	think      time.Duration // from a completion to the next submission
	sequential bool
	burst      int // I/Os between flushes, which run alone; 0 for no flushes
	digests    bool
	// The floor receives into a large area, as the target does, instead of one buffer that stays in
	// the cache.
	cold  bool
	timed bool    // the latency of the floor is measured, too
	on    variant // of the target
	extra bool    // only with -all
}

// pattern is the same traffic for the floor.
func (w workload) pattern() []floorShape {
	if w.reads%100 != 0 {
		n := w.reads / 10
		var p []floorShape
		for i := range 10 { // evenly mixed
			if (i+1)*n/10 > i*n/10 {
				p = append(p, readFloor(w.size))
			} else {
				p = append(p, writeFloor(w.size))
			}
		}
		return p
	}
	if w.reads == 0 {
		return []floorShape{writeFloor(w.size)}
	}
	return []floorShape{readFloor(w.size)}
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

// alone says that there is only one I/O at a time: the row measures latency.
func (w workload) alone() bool { return w.depth == 1 && w.queues == 1 }

func connectionsName(queues int) string {
	return fmt.Sprintf("4K random read, %d in flight on %d connections", inFlight, queues)
}

// workloads are the rows whose name matches filter; without a filter, those that need -all are
// left out unless all is set.
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
				list = append(list, workload{
					name: fmt.Sprintf("4K random %s QD %d%s", kind.name, depth, suffix),
					size: 4 << 10, depth: depth, queues: queues,
					reads: kind.reads, extra: queues > 1,
				})
			}
		}
		for _, size := range []int{128 << 10, 1 << 20} {
			for _, reads := range []int{100, 0} {
				w := workload{
					size: size, depth: 16, queues: queues, reads: reads, sequential: true,
					extra: queues > 1,
				}
				w.name = fmt.Sprintf("%s %s QD 16%s", sizeName(size),
					map[int]string{100: "read", 0: "write"}[reads], suffix)
				list = append(list, w)
			}
		}
	}
	list = append(list,
		workload{
			name: pollingName, size: 4 << 10, depth: 1, queues: 1, reads: 100,
			on: variant{spin: "100ms"},
		},
		workload{
			name: asleepName, size: 4 << 10, depth: 1, queues: 1, reads: 100,
			on: variant{spin: "0s"},
		},
		workload{
			name: coldName, size: 128 << 10, depth: 16, queues: 1, sequential: true,
			cold: true,
		},
		workload{name: digestsName, size: 4 << 10, depth: 32, queues: 1, reads: 100, digests: true},
		workload{
			name: "dataset loading: 256K random read, 8 jobs QD 4", size: 256 << 10, depth: 4,
			queues: 8, reads: 100,
		},
		workload{
			name: "checkpoint: 1M write QD 16, flush each 64M", size: 1 << 20, depth: 16,
			queues: 1, sequential: true, burst: 64,
		},
		workload{
			name: gcName, size: 4 << 10, depth: 32, queues: 1, reads: 100, timed: true,
			on: variant{own: "collecting"},
		},
		workload{
			name: besideIdle, size: 4 << 10, depth: 32, queues: 1, connected: 1023,
			reads: 100,
		})
	for _, queues := range connections {
		list = append(list,
			workload{
				name: connectionsName(queues), size: 4 << 10, depth: inFlight / queues,
				queues: queues, reads: 100,
			})
	}
	var kept []workload
	for _, w := range list {
		if re.MatchString(w.name) && (all || filter != "" || !w.extra) {
			kept = append(kept, w)
		}
	}
	return kept, nil
}

func sizeName(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%dM", bytes>>20)
	}
	return fmt.Sprintf("%dK", bytes>>10)
}
