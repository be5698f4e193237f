package rdma

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
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

// newEvictHarness returns a harness with budgets for 16 connections of an address.
func newEvictHarness(t *testing.T, o harnessOptions) *harness {
	o.cfg.MaxQueues = 64
	return newHarness(t, o)
}

// Established connections without a Connect command make room for newer ones. The queues of hosts
// stay.
func TestEvictEstablished(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b := newEvictHarness(t, o)
		host := b.host.associate(b.addr(), ioParam(8))
		idle := b.host.connect(b.addr(), adminParam())
		for range 15 {
			b.host.connect(b.addr(), adminParam())
		}
		newer := b.host.dial(b.addr(), ioParam(8))
		newer.request(ioParam(8))
		evicted, established := false, false
		for !evicted || !established {
			switch ev := <-b.host.events; {
			case ev.Type == verbs.EventDisconnected && ev.ID == idle.id:
				evicted = true
			case ev.Type == verbs.EventEstablished && ev.ID == newer.id:
				established = true
			default:
				t.Fatalf("event %v", ev.Type)
			}
		}
		for _, q := range []*hostQueue{host, newer} {
			testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		}
		testutil.Until(t, "it has left", func() bool {
			u := b.tr.Usage()
			return u.Connections == 17 && u.Unassociated == 16 && u.Evicted == 1
		})
	})
}

// A connection request that is evicted before its queue is made is rejected, and takes no resources
// of the device.
func TestEvictRequested(t *testing.T) {
	b := newEvictHarness(t, harnessOptions{})
	// The others are refused after one of them was evicted.
	b.host.associate(b.addr(), ioParam(8))
	made := b.host.connect(b.addr(), adminParam()) // also makes the poller
	b.g.setupMu.Lock()                             // the device is slow
	var waiting []*hostQueue
	for range 16 {
		q := b.host.dial(b.addr(), adminParam())
		q.request(adminParam())
		waiting = append(waiting, q)
	}
	testutil.Until(t, "the first one is evicted", func() bool { return b.tr.Usage().Evicted == 1 })
	b.host.event(verbs.EventDisconnected)
	last := b.host.dial(b.addr(), adminParam())
	last.request(adminParam())
	testutil.Until(t, "the next one is evicted", func() bool { return b.tr.Usage().Evicted == 2 })
	b.g.setupMu.Unlock()
	established := 0
	for range 17 {
		switch ev := <-b.host.events; ev.Type {
		case verbs.EventEstablished:
			established++
		case verbs.EventRejected:
			rej, ok := cmwire.Parse[cmwire.Rej](ev.Param.PrivateData)
			testutil.True(t, ev.ID == waiting[0].id && ok && rej.Status == cmwire.NoResources,
				"rejected: %x", ev.Param.PrivateData)
		default:
			t.Fatalf("event %v", ev.Type)
		}
	}
	testutil.Equal(t, established, 16, "are established")
	testutil.Until(t, "the others have left", func() bool {
		return b.tr.Usage().Connections == 17 && b.f.Live("target").QPs == 17
	})
	made.free()
}

// While queues are made for strangers, queues for addresses of hosts do not wait for them.
func TestStrangersWait(t *testing.T) {
	b := newHarness(t, harnessOptions{setup: func(f *verbstest.Fabric) {
		f.AddHost("stranger", verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.77")))
	}})
	b.host.associate(b.addr(), ioParam(8))
	b.g.strangersMu.Lock() // a queue is being made
	stranger := newHost(t, b.f.Provider("stranger"))
	q := stranger.dial(b.addr(), adminParam())
	q.request(adminParam())
	testutil.Until(t, "it has asked", func() bool { return b.tr.Usage().Unassociated == 1 })
	b.host.associate(b.addr(), ioParam(8))
	b.g.strangersMu.Unlock()
	stranger.event(verbs.EventEstablished)
}
