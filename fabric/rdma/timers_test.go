package rdma

import (
	"cmp"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// aheadLoop is a reactor with a clock that may be ahead of real time.
type aheadLoop struct {
	*reactor.Reactor
	ahead   int64 // reactor only, like pending
	pending map[*aheadTimer]struct{}
}

type aheadTimer struct {
	at   int64
	stop func()
	fn   func()
}

func (l *aheadLoop) Now() int64 { return l.Reactor.Now() + l.ahead }

func (l *aheadLoop) Clock() int64 { return l.Reactor.Clock() + l.ahead }

func (l *aheadLoop) After(d int64, fn func()) (stop func()) {
	t := &aheadTimer{at: l.Now() + d, fn: fn}
	end := func() { t.stop(); delete(l.pending, t) }
	t.stop = l.Reactor.After(d, func() { end(); fn() })
	l.pending[t] = struct{}{}
	return end
}

// later advances the clock of the target and runs the timers due then. A timer that they set waits
// for the next call.
func (b *harness) later(d time.Duration) {
	b.t.Helper()
	b.on(func() {
		l := b.loop
		l.ahead += d.Nanoseconds()
		var due []*aheadTimer
		for t := range l.pending {
			if t.at <= l.Now() {
				due = append(due, t)
			}
		}
		slices.SortFunc(due, func(a, b *aheadTimer) int { return cmp.Compare(a.at, b.at) })
		for _, t := range due {
			if _, ok := l.pending[t]; ok { // no timer before stopped it
				t.stop()
				delete(l.pending, t)
				t.fn()
			}
		}
	})
}

// stick waits until the target has something in flight and lets SendTimeout pass.
func (b *harness) stick() {
	b.t.Helper()
	testutil.Until(b.t, "something is in flight", func() (ok bool) {
		b.on(func() {
			for q := range b.g.queues.all() {
				ok = ok || q.signaled > 0
			}
		})
		return ok
	})
	for range 2 { // the first tick sets the limit
		b.later(b.tr.cfg.SendTimeout)
	}
}
