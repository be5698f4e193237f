package load

import (
	"bytes"
	"errors"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestBurstFlushesAlone: no I/O runs beside a flush.
func TestBurstFlushesAlone(t *testing.T) {
	w := &Workload{Burst: 4, Depth: 2}
	s := &Stream{w: w, left: 0, outstanding: 1, idle: []int{0}, limit: unlimited}
	err := s.submit(time.Now())
	testutil.True(t, err == nil && !s.flushing, "flushes with an I/O outstanding: %v", err)
	s = &Stream{
		w: w, left: 4, outstanding: 1, idle: []int{0}, flushing: true,
		limit: unlimited,
	}
	err = s.submit(time.Now())
	testutil.True(t, err == nil && len(s.idle) == 1, "submits while flushing: %v", err)
}

func TestPermutation(t *testing.T) {
	for n := uint64(1); n < 700; n++ {
		for seed := range uint64(4) {
			p, seen := newPermutation(n, seed*12345), make([]bool, n)
			for i := range n {
				if at := p.at(i); seen[at] {
					t.Fatalf("%d is there twice, of %d numbers", at, n)
				} else {
					seen[at] = true
				}
			}
		}
	}
	p := newPermutation(1<<62+1, 99)
	high, _ := bits.Mul64(p.n-1, p.factor)
	testutil.True(t, high != 0, "the factor of a large number is small")
	testutil.True(t, p.at(p.n-1) < p.n, "beyond the end")
}

// TestVerify: every error in a block is found and reported.
func TestVerify(t *testing.T) {
	const size, seed, block, pass = 512, 7, 100, 2
	good := make([]byte, 4*size)
	fill(good, size, seed, block, pass)
	testutil.Must(t, compare(good, size, seed, block, pass))
	second := func(fn func([]byte)) func([]byte) { return func(b []byte) { fn(b[size : 2*size]) } }
	other := func(seed, block, pass uint64) func([]byte) {
		return second(func(b []byte) { fill(b, size, seed, block, pass) })
	}
	for want, change := range map[string]func([]byte){
		"is all zeroes: the written data is lost":      second(func(b []byte) { clear(b) }),
		"has the data of block 300, written in pass 2": other(seed, 300, pass),
		"has the data of pass 1, not of pass 2":        other(seed, 101, 1),
		"has data of another run, with seed 8":         other(8, 101, pass),
		"is damaged: byte 504 on is ":                  second(func(b []byte) { b[size-1] ^= 1 }),
		"has other data: it begins with 00 74":         second(func(b []byte) { b[0] = 0 }),
	} {
		b := bytes.Clone(good)
		change(b)
		var m *Mismatch
		err := compare(b, size, seed, block, pass)
		testutil.True(t, errors.As(err, &m) && strings.HasPrefix(m.Error(), "block 101 "+want),
			"%v, want %s", err, want)
	}
	// every bit counts
	for range 1000 {
		b, at := bytes.Clone(good), rand.IntN(len(good)*8)
		b[at/8] ^= 1 << (at % 8)
		testutil.MustTrue(t, compare(b, size, seed, block, pass) != nil, "bit %d is not compared",
			at)
	}
	if n := testing.AllocsPerRun(100, func() {
		fill(good, size, seed, block, pass)
		_ = compare(good, size, seed, block, pass)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSeries: for any time between I/Os none is lost, and series of threads with different run
// times merge.
func TestSeries(t *testing.T) {
	start := time.Now()
	var list [3]*Series
	for i := range list {
		s := NewSeries()
		s.end = start.Add(s.Interval)
		for k := range 1000 {
			c := s.at(start.Add(time.Duration(k) * time.Duration(1+i*i*40) * 10 * time.Millisecond))
			c.Bytes[Read]++
			c.Latency.Add(1000)
		}
		list[i] = s
	}
	for _, s := range list[1:] {
		list[0].Merge(s)
	}
	ops, bytes := uint64(0), uint64(0)
	for _, c := range list[0].Cells() {
		ops, bytes = ops+c.Latency.Count(), bytes+c.Bytes[Read]
	}
	testutil.True(t, ops == 3000 && bytes == 3000, "%d and %d I/Os in cells, want 3000", ops, bytes)
	if d := list[0].Interval * maxCells; d < 1610*time.Second || d > 2*1610*time.Second {
		t.Errorf("cells for %v, want at least those for 1610 s", d)
	}
}

// TestUsable: descriptions of a namespace that would break this program.
func TestUsable(t *testing.T) {
	good := func() *nvme.IdentifyNamespace {
		ns := &nvme.IdentifyNamespace{NSZE: 1000}
		ns.LBAF[0].LBADS = 9
		return ns
	}
	testutil.Check(t, Usable(good()))
	for what, change := range map[string]func(*nvme.IdentifyNamespace){
		"no blocks":   func(n *nvme.IdentifyNamespace) { n.NSZE = 0 },
		"tiny blocks": func(n *nvme.IdentifyNamespace) { n.LBAF[0].LBADS = 0 },
		"huge blocks": func(n *nvme.IdentifyNamespace) { n.LBAF[0].LBADS = 255 },
		"overflow":    func(n *nvme.IdentifyNamespace) { n.NSZE = 1<<64 - 1 },
		"metadata":    func(n *nvme.IdentifyNamespace) { n.LBAF[0].MS = 8 },
		"no format":   func(n *nvme.IdentifyNamespace) { n.FLBAS = 0xFF },
	} {
		ns := good()
		change(ns)
		testutil.True(t, Usable(ns) != nil, "%s are accepted", what)
	}
}
