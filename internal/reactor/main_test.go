package reactor

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// start runs a reactor until the end of the test.
func start(tb testing.TB, cfg Config, pollers ...Poller) *Reactor {
	tb.Helper()
	r := testutil.Value(New(cfg))(tb)
	for _, p := range pollers {
		r.Attach(p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		testutil.Receive(tb, "Run to return", done)
		testutil.Check(tb, r.Close())
	})
	return r
}

// do runs fn on the reactor and waits for it.
func do(tb testing.TB, r *Reactor, fn func()) {
	tb.Helper()
	done := make(chan struct{})
	r.Post(func() { fn(); close(done) })
	testutil.Receive(tb, "a posted function", done)
}

// poller is a Poller made of functions.
type poller struct {
	poll func(budget int) int
	arm  func() bool
}

func (p *poller) Poll(budget int) int {
	if p.poll == nil {
		return 0
	}
	return p.poll(budget)
}

func (p *poller) Arm() bool { return p.arm == nil || p.arm() }

func TestListsOneCPU(t *testing.T) {
	name := filepath.Join(t.TempDir(), "online")
	testutil.Equal(t, listsOneCPU(name), runtime.NumCPU() == 1, "without the list")
	for list, want := range map[string]bool{
		"0\n": true, "17\n": true, "0-1\n": false,
		"0,2\n": false, "0-3,5\n": false,
	} {
		testutil.Must(t, os.WriteFile(name, []byte(list), 0o600))
		testutil.Equal(t, listsOneCPU(name), want, "CPUs %q", list)
	}
}

func BenchmarkIterate(b *testing.B) {
	for _, work := range []int{0, 32} {
		b.Run([]string{"empty", "busy"}[min(work, 1)], func(b *testing.B) {
			r := start(b, Config{CPU: -1})
			do(b, r, func() {
				p := &poller{poll: func(int) int { return work }}
				r.Attach(p)
				r.After(int64(time.Hour), func() {})
				b.ReportAllocs()
				for b.Loop() {
					r.iterate()
				}
			})
		})
	}
}

func BenchmarkWakeAwake(b *testing.B) {
	r := start(b, Config{CPU: -1})
	do(b, r, func() {
		for b.Loop() {
			r.Wake()
		}
	})
}

func BenchmarkPostRoundTrip(b *testing.B) {
	for name, spin := range spins {
		b.Run(name, func(b *testing.B) {
			r := start(b, Config{CPU: -1, Spin: spin})
			done := make(chan struct{})
			for b.Loop() {
				r.Post(func() { done <- struct{}{} })
				<-done
			}
		})
	}
}
