package reactor

import (
	"context"
	"testing"

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
