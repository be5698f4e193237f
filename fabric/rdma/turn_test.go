package rdma

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A queue with 128 commands delays the one command of another queue by a turn, not by all of them.
// Each poll serves one turn.
func TestTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		op   nvme.Opcode
		size uint32
		turn int // commands
	}{
		"small":  {opRead, 512, turnCommands},
		"large":  {opRead, 128 << 10, 3},
		"writes": {opWrite, 128 << 10, 3},
	} {
		for srq, size := range map[string]int{"": 0, " SRQ": 2 * srqSlabSlots} {
			t.Run(name+srq, func(t *testing.T) {
				const depth = 128
				m := newManual(t, verbstest.Options{}, Config{SRQSize: size}, ioParam(depth))
				other := m.connect(t, ioParam(2))
				for cid := range uint16(depth) {
					s := m.host.keyed(command(tt.op, cid, 0, tt.size), 0, tt.size)
					m.host.send(&s, nil)
				}
				s := other.keyed(command(opRead, 7, 0, 4096), 0, 4096)
				other.send(&s, nil)
				m.turn()
				if n := m.h.counts["prepare"]; n != tt.turn+1 {
					t.Errorf("%d commands have begun, want %d and the other", n, tt.turn)
				}
				testutil.True(t, !m.g.Arm(), "the reactor may sleep although commands wait")
				if cqe, _, ok := other.response(); !ok || !cqe.Status().OK() || cqe.CID() != 7 {
					t.Errorf("the other: %v, %v", cqe.Status(), ok)
				}
				m.turn()
				testutil.Equal(t, m.h.counts["prepare"], 2*tt.turn+1,
					"commands have begun in two polls")
				m.until(t, func() bool { return m.h.counts["complete"] == depth+1 })
			})
		}
	}
}

// Responses that complete at once, after a disk has answered, are also sent in turns.
func TestTurnsOfResponses(t *testing.T) {
	const depth, size = 16, 128 << 10
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(depth))
	hold := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpWrite, Hold: true, Times: -1,
	})
	for cid := range uint16(depth) {
		s := m.host.keyed(command(opHoldRead, cid, 0, size), 0, size)
		m.host.send(&s, nil)
	}
	m.until(t, func() bool { return len(m.h.held) == depth })
	for _, r := range m.h.held {
		m.h.complete(r, nvme.Success)
	}
	m.h.held = nil
	for polls := 1; polls <= 2; polls++ {
		m.turn()
		testutil.Equal(t, m.q.sqSize-m.q.sqFree, 2*3*polls, "work requests after %d polls", polls)
	}
	hold.Release()
	m.until(t, func() bool { return m.q.sqFree == m.q.sqSize })
}

// TestManyEnd: however many queues end together, a poll ends some of them.
func TestManyEnd(t *testing.T) {
	const queues, depth = 40, 128
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(depth))
	for range queues - 1 {
		m.connect(t, ioParam(depth))
	}
	var all []*queue
	for q := range m.g.queues.all() {
		all = append(all, q)
		q.fail(errHostLeft)
	}
	ended := 0
	for polls := 0; ended < queues; polls++ {
		before := ended
		m.turn()
		ended = 0
		for _, q := range all {
			if q.session.(*testSession).closed {
				ended++
			}
		}
		testutil.MustTrue(t, (ended-before)*depth <= (sendMost+depth)*endPart && polls < queues,
			"%d queues end in a poll", ended-before)
	}
}

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

// cqDevice is a device with nothing but completion queues.
type cqDevice struct{ verbs.Device }

func (cqDevice) CreateCQ(int, verbs.CompChannel, int) (verbs.CQ, error) { return nil, nil }

// A thousand queues of the usual depth share few completion queues. A device that has only small
// ones needs more.
func TestCompletionQueuesAreShared(t *testing.T) {
	const queues, need = 1024, 3*128 + 16
	for most, want := range map[int]int{1 << 20: 6, 32767: 14} { // 32767: soft RoCE
		p := &poller{
			g:   &group{},
			dev: &device{dev: cqDevice{}, attr: verbs.DeviceAttr{MaxCQE: most}},
		}
		for range queues {
			testutil.Value(p.acquireCQ(need, nil))(t)
		}
		promised := 0
		for _, c := range p.cqs {
			testutil.True(t, c.used <= c.size && c.size <= most, "%d of %d entries are promised",
				c.used, c.size)
			promised += c.used
		}
		testutil.True(t, promised == queues*need && len(p.cqs) == want,
			"%d completion queues for %d entries, want %d", len(p.cqs), promised, want)
	}
}
