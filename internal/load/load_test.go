package load

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestBurstFlushesAlone: no I/O runs beside a flush.
func TestBurstFlushesAlone(t *testing.T) {
	w := &Workload{Burst: 4, Depth: 2}
	s := &Stream{w: w, left: 0, outstanding: 1, idle: []int{0}, limit: unlimited}
	err := s.submit(time.Now())
	testutil.True(t, err == nil && !s.flushing, "flushes with an I/O outstanding: %v", err)
	s = &Stream{w: w, left: 4, outstanding: 1, idle: []int{0}, flushing: true, limit: unlimited}
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

func TestMain(m *testing.M) { testutil.Main(m) }

const nqn = "nqn.2026-11.io.nvmf-target:load"

// start starts a target in this process, and connects workloads to it.
func start(t *testing.T, list ...Workload) *Load {
	t.Helper()
	c := testutil.Value(app.Parse("load.yaml", []byte(`
listeners: [{transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}]
reactors: {count: 1, spin: 0s, memory: 64MiB}
subsystems:
  - nqn: `+nqn+`
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB, block_size: 4096}]
`), nil))(t)
	s := app.NewServer(app.Options{Config: c, Log: new(testutil.Log).Logger(), Version: "load"})
	testutil.Must(t, s.Start())
	t.Cleanup(func() { testutil.Check(t, s.Stop(context.Background())) })
	o := Options{
		Transport: host.TCP{Addr: s.Addrs()[0].AddrPort},
		Host: host.Options{
			SubNQN: nqn, HostID: [16]byte{1},
			HostNQN: "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5",
		},
	}
	l := testutil.Value(New(t.Context(), o, list...))(t)
	t.Cleanup(l.Close)
	return l
}

func into(o *Outcome) func(*Stream) *Outcome { return func(*Stream) *Outcome { return o } }

// TestPercentiles: percentiles of a run are within 5 % of the exact ones of the same run.
func TestPercentiles(t *testing.T) {
	l := start(t, Workload{Name: "mixed", Size: 4096, Depth: 8, Queues: 2, Reads: 70})
	o := Outcome{exact: make([]int64, 0, 1<<20)}
	for o.Ops() < 10000 {
		testutil.Must(t, l.Run(50*time.Millisecond, into(&o)))
	}
	n := len(o.exact)
	testutil.MustTrue(t, uint64(n) == min(o.Ops(), 1<<20), "%d latencies of %d I/Os", n, o.Ops())
	slices.Sort(o.exact)
	worst := 0.0
	for _, q := range []float64{.5, .9, .99, .999, .9999} {
		exact, got := float64(o.exact[int(q*float64(n))]), float64(o.Latency().Quantile(q))
		worst = max(worst, math.Abs(got/exact-1))
		testutil.True(t, math.Abs(got/exact-1) <= .05, "p%v: %v ns, exactly %v", q*100, got, exact)
	}
	t.Logf("%d I/Os, at most %.1f %% off", n, worst*100)
}

// TestRate: I/Os begin when they are due, and their latency counts from then. If the target pauses
// for a moment, all I/Os due meanwhile show it.
func TestRate(t *testing.T) {
	const due = 500 // one each millisecond
	w := Workload{Name: "rate", Size: 4096, Depth: 1, Queues: 1, Reads: 100, Rate: 1000}
	l := start(t, w)
	var o Outcome
	s := l.streams[0]
	began := time.Now().Add(-due * time.Millisecond) // so no I/O ends before all are due
	s.begin(began, &o)
	for _, last := range []uint64{0, 1, 99, 300, due - 1} {
		now := began.Add(time.Duration(last) * time.Millisecond)
		for before := ^uint64(0); before != s.begun; {
			before = s.begun
			s.ready = now // instead of the time when the last I/O ended
			testutil.Must(t, s.submit(now))
			for s.outstanding > 0 {
				testutil.Value(s.poll(now, nil))(t)
			}
		}
		testutil.Equal(t, s.begun, last+1, "I/Os have begun after %d ms", last)
	}
	s.end(began.Add((due+10)*time.Millisecond - 1))
	testutil.True(t, o.Ops() == due && o.Late == 10, "%d I/Os and %d late, want %d and 10", o.Ops(),
		o.Late, due)
	// The latency of I/O k is due-k ms or more.
	if half := o.Latency().Quantile(.5); half < int64(due/2*time.Millisecond)*95/100 {
		t.Errorf("half of the I/Os took %v or less", time.Duration(half))
	}
}

// TestNothingIsAllocated: neither the load nor the target allocates for an I/O.
func TestNothingIsAllocated(t *testing.T) {
	l := start(t,
		Workload{
			Name: "mixed", Size: 4096, Depth: 8, Queues: 2, Reads: 50, Burst: 16,
			Sizes: []Share{{4096, 50}, {16384, 50}},
		},
		Workload{Name: "rate", Size: 4096, Depth: 4, Queues: 1, Sequential: true, Rate: 5000})
	var o Outcome
	thread := l.Threads(1, new(atomic.Bool))[0]
	thread.Series = NewSeries()
	if err := thread.Run(200*time.Millisecond, into(&o)); err != nil { // warm up
		t.Fatal(err)
	}
	thread.Series, o = NewSeries(), Outcome{}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	testutil.Must(t, thread.Run(500*time.Millisecond, into(&o)))
	runtime.ReadMemStats(&after)
	n := after.Mallocs - before.Mallocs
	testutil.True(t, n <= 50+o.Ops()/100, "%d allocations for %d I/Os", n, o.Ops())
}

// TestOnce: each place has its turn once, in any order and with any number of queues.
func TestOnce(t *testing.T) {
	for _, sequential := range []bool{true, false} {
		l := start(t, Workload{
			Name: "once", Size: 16384, Depth: 4, Queues: 3, Verify: true,
			Sequential: sequential,
		})
		for _, write := range []bool{true, false} {
			var o Outcome
			l.Pass(1, write)
			testutil.Must(t, l.Run(0, into(&o)))
			// three parts of 5592405 bytes
			testutil.Equal(t, o.Ops(), 3*(16<<20/3/16384), "I/Os")
		}
	}
}

// TestNothingWritten: a queue that has written nothing in a pass reads nothing.
func TestNothingWritten(t *testing.T) {
	l := start(t, Workload{Name: "none", Size: 4096, Depth: 1, Queues: 2, Verify: true})
	var stop atomic.Bool
	stop.Store(true)
	var o Outcome
	l.Pass(1, true)
	testutil.Must(t, l.Threads(1, &stop)[0].Run(0, into(&o)))
	l.Pass(1, false)
	if err := l.Run(0, into(&o)); err != nil || o.Ops() > 0 {
		t.Errorf("%d I/Os, %v", o.Ops(), err)
	}
}
