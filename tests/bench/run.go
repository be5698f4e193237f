package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// run measures every workload and prints the table.
func run(o options) error {
	if runtime.NumCPU() < 2 {
		return fmt.Errorf("needs two CPUs, one for the target and one for the load; this machine has %d", runtime.NumCPU())
	}
	list, err := workloads(o.filter)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nvmf-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := pin(o.clients); err != nil {
		return err
	}
	target, err := startTarget(o.target, o.servers, dir)
	if err != nil {
		return err
	}
	rows, err := measure(o, list, target)
	if stopped := target.stop(); err == nil {
		err = stopped
	}
	if err != nil {
		return fmt.Errorf("%w\nlog of the target:\n%s", err, target.log.String())
	}
	return writeTable(os.Stdout, rows)
}

func measure(o options, list []workload, target *server) ([]row, error) {
	if err := fillTarget(target.port); err != nil {
		return nil, err
	}
	rows := make([]row, len(list))
	for i, w := range list {
		rows[i].workload = w
		for range o.rounds {
			fmt.Fprintf(os.Stderr, "%s (load average %s)\n", w.name, loadAverage())
			floor, err := floorRound(o, w)
			if err != nil {
				return nil, err
			}
			ours, err := targetRound(o, w, target)
			if err != nil {
				return nil, err
			}
			rows[i].floor, rows[i].target = append(rows[i].floor, floor), append(rows[i].target, ours)
		}
	}
	return rows, nil
}

func floorRound(o options, w workload) (result, error) {
	s, err := startFloor(o.servers, w.shape())
	if err != nil {
		return result{}, err
	}
	r, err := loadFloor(s.port, anyCPU, w.depth, w.shape(), o.duration)
	if stopped := s.stop(); err == nil {
		err = stopped
	}
	return r, err
}

func targetRound(o options, w workload, target *server) (result, error) {
	l, err := newLoad(target.port, w)
	if err != nil {
		return result{}, err
	}
	defer l.close()
	if _, err := l.run(min(time.Second, o.duration)); err != nil { // warm up
		return result{}, err
	}
	user, system, err := target.cpuTime()
	if err != nil {
		return result{}, err
	}
	r, err := l.run(o.duration)
	if err != nil {
		return result{}, err
	}
	userAfter, systemAfter, err := target.cpuTime()
	r.user, r.system = userAfter-user, systemAfter-system
	return r, err
}

// loadAverage is how busy the machine was in the last minute.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(b))[0]
}
