package rdma

import (
	"maps"

	"github.com/nvmf-target/nvmf-target/internal/reactor"
)

// earlyLoop is a reactor whose timers can be made to run at once.
type earlyLoop struct {
	*reactor.Reactor
	pending map[*earlyTimer]struct{} // reactor only
}

type earlyTimer struct {
	stop func()
	fn   func()
}

func (l *earlyLoop) After(d int64, fn func()) (stop func()) {
	t := &earlyTimer{fn: fn}
	end := func() { t.stop(); delete(l.pending, t) }
	t.stop = l.Reactor.After(d, func() { end(); fn() })
	l.pending[t] = struct{}{}
	return end
}

// expire runs every timer now.
func (b *harness) expire(l *earlyLoop) {
	b.on(func() {
		for t := range maps.Clone(l.pending) {
			if _, ok := l.pending[t]; ok { // no timer before stopped it
				t.stop()
				delete(l.pending, t)
				t.fn()
			}
		}
	})
}
