package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/load"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestSpread(t *testing.T) {
	testutil.Equal(t, spreadOf([]float64{3, 1, 2, 9, 4}), (spread{3, 1, 9}), "")
	testutil.Equal(t, spreadOf([]float64{3, 1}), (spread{2, 1, 3}), "")
}

// TestFloorServesEveryShape: the floor answers requests of every shape.
func TestFloorServesEveryShape(t *testing.T) {
	for _, w := range []workload{
		{Workload: load.Workload{Size: 4096, Depth: 4, Queues: 1, Reads: 100}, timed: true},
		{Workload: load.Workload{Size: 4096, Depth: 4, Queues: 3}},
		{Workload: load.Workload{Size: 128 << 10, Depth: 4, Queues: 1, Reads: 100}},
		{Workload: load.Workload{Size: 4096, Depth: 5, Queues: 2, Reads: 70}},
		{Workload: load.Workload{Size: 128 << 10, Depth: 4, Queues: 1}, cold: true},
	} {
		traffic := floorTraffic{Pattern: w.pattern(), depth: w.Depth, Conns: w.Queues, Cold: w.cold}
		if w.timed {
			traffic.latency = newFloorLatency(w.Depth)
		}
		port := testutil.Value(freePort())(t)
		served := make(chan error, 1)
		go func() { served <- serveFloor(port, anyCPU, traffic) }()
		// with one processor the sides take turns of 10 ms
		iops := testutil.Value(loadFloor(port, anyCPU, traffic, 50*time.Millisecond))(t)
		l := traffic.latency
		testutil.True(t, l == nil || l.Quantile(0.5) > 0, "%+v: no latency", w)
		if err := <-served; err != nil || iops == 0 {
			t.Errorf("%+v: %v answers a second, server: %v", traffic, iops, err)
		}
	}
}

func TestWorkloads(t *testing.T) {
	few := testutil.Value(workloads("", false))(t)
	all := testutil.Value(workloads("", true))(t)
	names := map[string]bool{}
	for _, w := range all {
		testutil.True(t, !names[w.Name], "%q appears twice", w.Name)
		names[w.Name] = true
		reads := 0
		for _, s := range w.pattern() {
			if s == readFloor(w.Size) {
				reads++
			}
		}
		got := 100 * reads / len(w.pattern())
		testutil.True(t, got == w.Reads, "%q: the floor reads %d %%, want %d", w.Name, got, w.Reads)
	}
	testutil.True(t, len(few) < len(all) && names["4K random 70/30 QD 32 on 16 queues"],
		"%d workloads, with -all %d", len(few), len(all))
}

// TestNoWorkload: the error lists the existing workloads.
func TestNoWorkload(t *testing.T) {
	b := bench{options: options{filter: "4K read QD 32"}}
	_, err := b.steps()
	for _, want := range []string{`"4K read QD 32"`, "\n  4K random read QD 32\n", "\n  " + idleName} {
		testutil.True(t, err != nil && strings.Contains(err.Error(), want), "no %q: %v", want, err)
	}
}
