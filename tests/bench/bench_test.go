package main

import (
	"strings"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	if got := spreadOf([]float64{3, 1, 2, 9, 4}); got != (spread{3, 1, 9}) {
		t.Errorf("got %+v", got)
	}
	if got := spreadOf([]float64{3, 1}); got != (spread{2, 1, 3}) {
		t.Errorf("got %+v", got)
	}
}

// TestFloorServesEveryShape: the floor answers every request, whatever its shape.
func TestFloorServesEveryShape(t *testing.T) {
	for _, w := range []workload{
		{size: 4096, depth: 4, queues: 1, reads: 100, timed: true},
		{size: 4096, depth: 4, queues: 3},
		{size: 128 << 10, depth: 4, queues: 1, reads: 100},
		{size: 4096, depth: 5, queues: 2, reads: 70},
		{size: 128 << 10, depth: 4, queues: 1, cold: true},
	} {
		traffic := floorTraffic{Pattern: w.pattern(), depth: w.depth, Conns: w.queues, Cold: w.cold}
		if w.timed {
			traffic.latency = newFloorLatency(w.depth)
		}
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- serveFloor(port, anyCPU, traffic) }()
		// with one processor the sides take turns of 10 ms
		iops, err := loadFloor(port, anyCPU, traffic, 300*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if l := traffic.latency; l != nil && l.Quantile(0.5) <= 0 {
			t.Errorf("%+v: no latency", w)
		}
		if err := <-served; err != nil || iops == 0 {
			t.Errorf("%+v: %v answers a second, server: %v", traffic, iops, err)
		}
	}
}

func TestWorkloads(t *testing.T) {
	few, err := workloads("", false)
	if err != nil {
		t.Fatal(err)
	}
	all, err := workloads("", true)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, w := range all {
		if names[w.name] {
			t.Errorf("%q is there twice", w.name)
		}
		names[w.name] = true
		reads := 0
		for _, s := range w.pattern() {
			if s == readFloor(w.size) {
				reads++
			}
		}
		if got := 100 * reads / len(w.pattern()); got != w.reads {
			t.Errorf("%q: the floor reads %d %%, want %d", w.name, got, w.reads)
		}
	}
	if len(few) >= len(all) || !names["4K random 70/30 QD 32 on 16 queues"] {
		t.Errorf("%d workloads, with -all %d", len(few), len(all))
	}
}

// TestBurstFlushesAlone: no I/O runs beside a flush.
func TestBurstFlushesAlone(t *testing.T) {
	s := &stream{w: workload{burst: 4, depth: 2}, left: 0, outstanding: 1, idle: []int{0}}
	if err := s.submit(time.Now()); err != nil || s.flushing {
		t.Errorf("flushes with an I/O outstanding: %v", err)
	}
	s = &stream{
		w: workload{burst: 4, depth: 2}, left: 4, outstanding: 1, idle: []int{0},
		flushing: true,
	}
	if err := s.submit(time.Now()); err != nil || len(s.idle) != 1 {
		t.Errorf("submits while flushing: %v", err)
	}
}

// TestNoWorkload: the error names those that there are.
func TestNoWorkload(t *testing.T) {
	b := bench{options: options{filter: "4K read QD 32"}}
	_, err := b.steps()
	for _, want := range []string{`"4K read QD 32"`, "\n  4K random read QD 32\n", "\n  " + idleName} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q: %v", want, err)
		}
	}
	if err := attach(options{}, "tcp:127.0.0.1:1", ""); err == nil ||
		!strings.Contains(err.Error(), "-nqn") {
		t.Error(err)
	}
}
