package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBucketsAreFine(t *testing.T) {
	for _, ns := range []uint64{0, 1, 31, 32, 33, 63, 64, 1000, 4095, 4096, 1 << 20, 1<<40 + 12345} {
		low := lowest(bucketOf(ns))
		if low > ns || ns-low > ns/(1<<subBits) {
			t.Errorf("%d falls into the bucket that begins at %d", ns, low)
		}
	}
}

func TestHistogramQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var h histogram
	values := make([]uint64, 10000)
	for i := range values {
		values[i] = rng.Uint64N(1_000_000)
		h.add(values[i])
	}
	slices.Sort(values)
	for _, q := range []float64{0.5, 0.99, 0.999} {
		want := float64(values[int(q*float64(len(values)))])
		if got := h.quantile(q); got > want || got < want*0.96 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if got := h.quantile(1); got != float64(values[len(values)-1]) {
		t.Errorf("maximum is %v, want %v", got, values[len(values)-1])
	}
}

func TestSpread(t *testing.T) {
	if got := spreadOf([]float64{3, 1, 2, 9, 4}); got != (spread{3, 1, 9}) {
		t.Errorf("got %+v", got)
	}
}

// The floor must answer exactly what it is asked for, whatever the shape.
func TestFloorServesEveryShape(t *testing.T) {
	for _, s := range []floorShape{readFloor(4096), writeFloor(4096), readFloor(128 << 10)} {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- serveFloor(port, anyCPU, s) }()
		r, err := loadFloor(port, anyCPU, 4, s, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil || r.ops == 0 {
			t.Errorf("%+v: %d answers, server: %v", s, r.ops, err)
		}
	}
}
