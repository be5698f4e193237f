package load

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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
			SubNQN: nqn, HostID: [16]byte{1}, Timeout: testutil.Patience,
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
