package cm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

const port = 4420

// TestSecondQueuePair: of two queue pairs made for an ID at once it gets one, and none after
// its end. The other is destroyed.
func TestSecondQueuePair(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	id := a.route(p, port)
	testutil.Must(t, id.(*ID).QP.Destroy())
	a.dev.onNewQP = func() { a.queue(id) }
	testutil.Is(t, testutil.Err(id.CreateQP(nil, verbs.QPInit{})), unix.EINVAL, "the slower one")
	testutil.True(t, !a.dev.queues[1].gone && a.dev.queues[2].gone, "the wrong one is destroyed")
	testutil.True(t, id.(*ID).QP.QP == verbs.QP(a.dev.queues[1]), "the ID has another one")
	a.end(id)
	id = a.route(p, port)
	testutil.Must(t, id.(*ID).QP.Destroy())
	a.dev.onNewQP = func() { testutil.Must(t, id.Destroy()) }
	testutil.Is(t, testutil.Err(id.CreateQP(nil, verbs.QPInit{})), unix.EINVAL, "of no ID")
	testutil.True(t, a.dev.queues[4].gone, "a queue pair of no ID is left")
	w.settle()
}

// TestMessages is a connection without loss: the messages, the events and the parameters of the
// queue pairs.
func TestMessages(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{MTU: 1500})
	l := p.listen(port, 0)
	id := a.route(p, port)
	p.on = func(ev verbs.Event) {
		if ev.Type == verbs.EventConnectRequest {
			testutil.Equal(t, ev.Param.RetryCount, 6, "retries")
			p.queue(ev.ID)
			testutil.Must(t, ev.ID.Accept(verbs.ConnParam{
				ResponderResources: 9, InitiatorDepth: 9, RNRRetryCount: 5,
			}))
		}
	}
	testutil.Must(t, id.Connect(verbs.ConnParam{
		ResponderResources: 3, InitiatorDepth: 2, RetryCount: 6, RNRRetryCount: 4,
	}))
	w.settle()
	qa, qp := a.dev.queues[0], p.dev.queues[0]
	testutil.MustTrue(t, qa.other() == qp && qp.other() == qa, "%+v and %+v", qa.peer, qp.peer)
	for q, want := range map[*queue][6]uint8{ // depths, retries, timeout
		qa: {3, 2, 6, 5, 17, 0}, qp: {9, 3, 6, 4, 17, 0},
	} {
		testutil.Equal(t, [6]uint8{
			q.peer.ResponderResources, q.peer.InitiatorDepth, q.peer.RetryCount, q.peer.RNRRetry,
			q.peer.AckTimeout, q.peer.MinRNRTimer,
		}, want, "queue pair %d", q.num)
		testutil.Equal(t, q.peer.Path.MTU, 1024, "path MTU of queue pair %d", q.num)
	}
	testutil.Equal(t, qa.peer.Path.Remote, p.addr, "path")
	testutil.Equal(t, qp.peer.Path.Remote, a.addr, "path")
	testutil.Must(t, id.Disconnect())
	w.settle()
	testutil.MustTrue(t, qa.failed && !qp.failed, "Disconnect fails the queue pair of its side")
	passive := p.log[0].ID
	testutil.Must(t, passive.Disconnect())
	w.run(ever)
	for h, want := range map[*machine][]verbs.EventType{
		a: {verbs.EventEstablished, verbs.EventDisconnected, verbs.EventTimewaitExit},
		p: {
			verbs.EventConnectRequest, verbs.EventEstablished, verbs.EventDisconnected,
			verbs.EventTimewaitExit,
		},
	} {
		testutil.Equal(t, fmt.Sprint(h.types()), fmt.Sprint(want), "events of %v", h.addr)
	}
	var order []attr
	for _, s := range w.sent {
		order = append(order, s.attr)
	}
	testutil.Equal(t, fmt.Sprint(order),
		fmt.Sprint([]attr{attrREQ, attrREP, attrRTU, attrDREQ, attrDREP}), "messages")
	testutil.Equal(t, linuxTimeout(w.sent[1].ackDelay), 4096*time.Nanosecond<<19,
		"time until a Linux host sends again")
	a.end(id)
	p.end(passive)
	testutil.Must(t, l.Destroy())
	a.empty("active")
	p.empty("passive")
}

// linuxTimeout is the ACK timeout of a Linux host over RoCE (cm_ack_timeout in
// drivers/infiniband/core/cm.c), with the packet lifetime of cma.c.
func linuxTimeout(ackDelay uint8) time.Duration {
	const lifetime = 16
	timeout := uint8(lifetime + 1)
	if timeout >= ackDelay {
		if ackDelay >= timeout-1 {
			timeout++
		}
	} else if timeout = ackDelay; lifetime+1 >= ackDelay-1 {
		timeout++
	}
	return ibTime(timeout)
}

// TestLostMessages connects and ends connections while every combination of the first messages is
// lost. Both sides learn everything, once, and nothing is left of it.
func TestLostMessages(t *testing.T) {
	const first = 9
	for _, c := range []struct {
		name string
		fn   func(w *world, a, p *machine)
	}{
		{"active side disconnects", func(w *world, a, p *machine) {
			p.serve()
			a.on = func(ev verbs.Event) {
				switch ev.Type {
				case verbs.EventEstablished:
					a.dev.queues[0].packet()
					w.settle()
					testutil.Must(w.t, ev.ID.Disconnect())
				case verbs.EventDisconnected:
					a.end(ev.ID)
				}
			}
			w.expect(a, verbs.EventEstablished, verbs.EventDisconnected)
			w.finished(p)
		}},
		{"passive side disconnects", func(w *world, a, p *machine) {
			p.serve()
			serve := p.on
			p.on = func(ev verbs.Event) {
				if ev.Type == verbs.EventEstablished {
					testutil.Must(w.t, ev.ID.Disconnect())
				}
				serve(ev)
			}
			a.on = func(ev verbs.Event) {
				switch ev.Type {
				case verbs.EventEstablished:
					a.dev.queues[0].packet()
				case verbs.EventDisconnected:
					testutil.Must(w.t, ev.ID.Disconnect())
					a.end(ev.ID)
				}
			}
			w.expect(a, verbs.EventEstablished, verbs.EventDisconnected)
			w.finished(p)
		}},
		{"active side destroys", func(w *world, a, p *machine) {
			p.serve()
			a.on = func(ev verbs.Event) {
				if ev.Type == verbs.EventEstablished {
					a.dev.queues[0].packet()
					a.end(ev.ID)
				}
			}
			w.expect(a, verbs.EventEstablished)
			w.finished(p)
		}},
		{"passive side rejects", func(w *world, a, p *machine) {
			p.on = func(ev verbs.Event) {
				if ev.Type == verbs.EventConnectRequest {
					testutil.Must(w.t, ev.ID.Reject([]byte("no")))
					p.end(ev.ID)
				}
			}
			a.on = func(ev verbs.Event) {
				testutil.Equal(w.t, ev.Status, rejConsumer, "reason")
				a.end(ev.ID)
			}
			w.expect(a, verbs.EventRejected)
			testutil.MustTrue(w.t, a.dev.queues[0].failed, "the queue pair did not fail")
		}},
		{"passive side accepts and destroys", func(w *world, a, p *machine) {
			serve := func(ev verbs.Event) {
				if ev.Type == verbs.EventConnectRequest {
					p.queue(ev.ID)
					testutil.Must(w.t, ev.ID.Accept(verbs.ConnParam{}))
					p.end(ev.ID)
				}
			}
			p.on = serve
			a.on = func(ev verbs.Event) {
				switch ev.Type {
				case verbs.EventRejected, verbs.EventDisconnected:
					a.end(ev.ID)
				}
			}
			a.connect(p)
			w.run(ever)
			if slices.Equal(a.types(), []verbs.EventType{verbs.EventEstablished}) {
				// REJ and RTU are lost. The first packet will get no answer.
				a.dev.queues[0].onFatal()
				w.run(ever)
			}
			types := a.types()
			both := []verbs.EventType{verbs.EventEstablished, verbs.EventDisconnected}
			testutil.MustTrue(w.t, slices.Equal(types, []verbs.EventType{verbs.EventRejected}) ||
				slices.Equal(types, both), "%v", types)
		}},
		{"active side gives up", func(w *world, a, p *machine) {
			p.serve()
			id := a.connect(p)
			a.end(id)
			w.run(ever)
			testutil.MustEqual(w.t, p.count(verbs.EventEstablished), 0, "connections")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for mask := range 1 << first {
				w := newWorld(t, wiretest.Options{})
				w.lose = func(n int, _ *sent) bool { return n < first && mask>>n&1 != 0 }
				a, p := w.host(1, Options{}), w.host(2, Options{})
				l := p.listen(port, 0)
				c.fn(w, a, p)
				testutil.Must(t, l.Destroy())
				what := fmt.Sprintf("lost messages %0*b", first, mask)
				a.empty(what)
				p.empty(what)
				w.atMostThreeReplies(what)
				w.close()
				if t.Failed() {
					t.Fatalf("%s: %v", what, w.sent)
				}
			}
		})
	}
}

// connect sends a request to the other machine.
func (h *machine) connect(to *machine) verbs.ID {
	h.w.t.Helper()
	id := h.route(to, port)
	testutil.Must(h.w.t, id.Connect(verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7}))
	return id
}

// expect connects a to the other machine and checks all its events.
func (w *world) expect(a *machine, want ...verbs.EventType) {
	w.t.Helper()
	a.connect(w.machines[1])
	w.run(ever)
	testutil.MustTrue(w.t, slices.Equal(a.types(), want), "events of the active side: %v, want %v",
		a.types(), want)
}

// finished checks that every request got its end, and that one connection came about.
func (w *world) finished(p *machine) {
	w.t.Helper()
	n, ends := p.count(verbs.EventConnectRequest),
		p.count(verbs.EventDisconnected)+p.count(verbs.EventUnreachable)
	testutil.MustTrue(w.t, n == ends && p.count(verbs.EventDisconnected) == 1 &&
		p.count(verbs.EventEstablished) <= 1, "events of the passive side: %v", p.types())
}

// atMostThreeReplies checks the answers to each request of a machine.
func (w *world) atMostThreeReplies(what string) {
	w.t.Helper()
	reps := map[uint32]int{}
	for _, s := range w.sent {
		if s.attr == attrREP {
			reps[s.local]++
		}
	}
	for id, n := range reps {
		testutil.MustTrue(w.t, n <= 3, "%s: %d REPs of connection %#x", what, n, id)
	}
}

// TestChaos makes many connections on a network with every fault, and ends them at random stages.
func TestChaos(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(t, wiretest.Options{
			Seed: seed, Loss: 0.2, Duplicate: 0.3, Reorder: 0.3, Corrupt: 0.05, Refuse: 0.1,
			Delay: time.Millisecond,
		})
		a, p := w.host(1, Options{}), w.host(2, Options{})
		rnd := rand.New(rand.NewPCG(seed, 1))
		ended := map[verbs.ID]bool{}
		wild := func(h *machine) {
			h.on = func(ev verbs.Event) {
				end := func() {
					testutil.MustTrue(t, !ended[ev.ID], "event %v after the end", ev.Type)
					ended[ev.ID] = true
					h.end(ev.ID)
				}
				switch {
				case rnd.IntN(8) == 0:
					end()
				case ev.Type == verbs.EventConnectRequest && withdrawn(ev.ID):
				case ev.Type == verbs.EventConnectRequest && rnd.IntN(4) == 0:
					testutil.Must(t, ev.ID.Reject(nil))
					end()
				case ev.Type == verbs.EventConnectRequest:
					h.queue(ev.ID)
					testutil.Must(t, ev.ID.Accept(verbs.ConnParam{}))
				case ev.Type == verbs.EventEstablished:
					q := ev.ID.(*ID).QP.QP.(*queue)
					switch rnd.IntN(4) {
					case 0:
						testutil.Must(t, ev.ID.Disconnect())
					case 1:
						q.packet()
					case 2:
						q.onFatal()
					}
				case ev.Type == verbs.EventDisconnected:
					testutil.Must(t, ev.ID.Disconnect())
					end()
				case ev.Type == verbs.EventTimewaitExit, ev.Type == verbs.EventRejected,
					ev.Type == verbs.EventUnreachable, ev.Type == verbs.EventConnectError:
					end()
				}
			}
		}
		l := p.listen(port, 0)
		wild(a)
		wild(p)
		var ids []verbs.ID
		for range 20 {
			ids = append(ids, a.connect(p))
			w.run(time.Duration(rnd.IntN(20)) * time.Second)
		}
		w.run(ever)
		// The program of a connection that nobody ended ends it.
		for h, all := range map[*machine][]verbs.ID{a: ids, p: nil} {
			for _, ev := range h.log {
				if !slices.Contains(all, ev.ID) {
					all = append(all, ev.ID)
				}
			}
			for _, id := range all {
				if !ended[id] {
					ended[id] = true
					h.end(id)
				}
			}
		}
		w.run(ever)
		testutil.Must(t, l.Destroy())
		a.empty(fmt.Sprintf("seed %d", seed))
		p.empty(fmt.Sprintf("seed %d", seed))
		w.atMostThreeReplies(fmt.Sprintf("seed %d", seed))
	}
}

// TestPeerDisappears: after each number of messages the other machine is gone. Everything ends by
// itself, but for an established connection without a message: its queue pair finds out.
func TestPeerDisappears(t *testing.T) {
	for n := range 5 {
		for gone := range 2 {
			w, a, p := newWorldOfTwo(t, wiretest.Options{})
			dead := w.machines[gone].addr
			w.lose = func(i int, s *sent) bool { return i >= n && (s.from == dead || s.to == dead) }
			l := p.serving()
			a.on = func(ev verbs.Event) {
				switch ev.Type {
				case verbs.EventDisconnected, verbs.EventUnreachable, verbs.EventRejected:
					a.end(ev.ID)
				}
			}
			a.connect(p)
			w.run(ever)
			for _, h := range w.machines {
				for _, q := range h.dev.queues {
					if q.peer != nil && !q.gone {
						q.onFatal()
					}
				}
			}
			w.run(ever)
			testutil.Must(t, l.Destroy())
			what := fmt.Sprintf("host %d gone after %d messages", gone, n)
			for _, h := range w.machines {
				h.empty(what)
				for _, ev := range h.log {
					if ev.Type == verbs.EventUnreachable {
						testutil.Equal(t, errno(ev), error(unix.ETIMEDOUT), "%s", what)
					}
				}
			}
		}
	}
}

// TestSlowProgram: a program that takes a minute for its answer keeps the peer waiting, by MRA.
func TestSlowProgram(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	l := p.listen(port, 0)
	id := a.connect(p)
	w.run(10 * time.Minute)
	testutil.MustEqual(t, fmt.Sprint(a.types()), "[]", "events of the active side")
	requests := 0
	for _, s := range w.sent {
		if s.attr == attrREQ {
			requests++
		}
	}
	testutil.MustTrue(t, requests <= 11 && len(w.sent) < 2*requests, "messages: %v", w.sent)
	passive := p.log[0].ID
	p.queue(passive)
	testutil.Must(t, passive.Accept(verbs.ConnParam{}))
	w.settle()
	testutil.MustEqual(t, a.count(verbs.EventEstablished), 1, "connections")
	a.end(id)
	w.settle()
	p.end(passive)
	w.run(ever)
	testutil.Must(t, l.Destroy())
	a.empty("active")
	p.empty("passive")
}

// TestBothDisconnect: the DREQs of both sides cross.
func TestBothDisconnect(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{Delay: time.Millisecond})
	l := p.serving()
	id := a.connect(p)
	w.run(time.Second)
	p.on = nil
	testutil.Must(t, id.Disconnect())
	testutil.Must(t, p.log[0].ID.Disconnect())
	w.run(ever)
	for _, h := range w.machines {
		testutil.Equal(t, h.count(verbs.EventDisconnected), 1, "events of %v", h.addr)
	}
	a.end(id)
	p.end(p.log[0].ID)
	testutil.Must(t, l.Destroy())
	a.empty("active")
	p.empty("passive")
}

// TestRejectionsAreBounded: rejected requests are remembered up to the limit.
func TestRejectionsAreBounded(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	p.listen(port, 0)
	p.on = func(ev verbs.Event) {
		testutil.Must(t, ev.ID.Reject(nil))
		p.end(ev.ID)
	}
	for range maxLingerHost + 50 {
		a.connect(p)
		w.settle()
	}
	testutil.Equal(t, a.count(verbs.EventRejected), maxLingerHost+50, "rejections")
	testutil.Equal(t, p.m.total[classLinger], maxLingerHost, "rejections kept")
}

// TestLingerIsBounded: destroyed connections whose peer is gone are forgotten beyond the limit.
func TestLingerIsBounded(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	l := p.serving()
	const n = maxLingerHost + 50
	for range n {
		a.connect(p)
		w.settle()
	}
	testutil.MustEqual(t, p.m.total[classLive], n, "connections")
	w.lose = func(int, *sent) bool { return true }
	for _, ev := range p.log {
		if ev.Type == verbs.EventConnectRequest {
			p.end(ev.ID)
		}
	}
	testutil.Equal(t, p.m.total[classLinger], maxLingerHost, "connections kept")
	p.ended(l, "passive")
}

// TestRepetitions: a message that comes again because its answer was lost gets the same answer.
func TestRepetitions(t *testing.T) {
	start := func(lost attr) (w *world, a, p *machine) {
		w = newWorld(t, wiretest.Options{})
		done := false
		w.lose = func(_ int, s *sent) (lose bool) {
			lose = s.attr == lost && !done
			done = done || lose
			return lose
		}
		a, p = w.host(1, Options{}), w.host(2, Options{})
		p.serving()
		return w, a, p
	}
	t.Run("RTU", func(t *testing.T) {
		w, a, p := start(attrRTU)
		a.connect(p)
		w.run(10 * time.Second)
		testutil.Equal(t, p.count(verbs.EventEstablished), 1, "connections")
		testutil.Equal(t, p.m.stats.Repeated.Load()+a.m.stats.Duplicates.Load(), 2, "REPs again")
	})
	reject := func(t *testing.T, ev verbs.Event, p *machine) {
		testutil.Must(t, ev.ID.Reject([]byte("no")))
		p.end(ev.ID)
	}
	rejected := func(t *testing.T, a, p *machine) {
		testutil.MustEqual(t, fmt.Sprint(a.types(), p.types()), "[REJECTED] [CONNECT_REQUEST]",
			"events")
		testutil.Equal(t, string(a.log[0].Param.PrivateData[:2]), "no", "private data")
	}
	t.Run("REJ", func(t *testing.T) {
		w, a, p := start(attrREJ)
		p.on = func(ev verbs.Event) { reject(t, ev, p) }
		a.connect(p)
		w.run(10 * time.Second)
		rejected(t, a, p)
	})
	t.Run("REJ and then REQ", func(t *testing.T) {
		w, a, p := start(attrREJ)
		lose, requests := w.lose, 0
		w.lose = func(n int, s *sent) bool {
			if s.attr == attrREQ {
				requests++
			}
			return lose(n, s) || s.attr == attrREQ && (requests == 2 || requests == 3)
		}
		p.on = func(ev verbs.Event) { reject(t, ev, p) }
		a.connect(p)
		w.run(time.Minute)
		rejected(t, a, p)
	})
	t.Run("REJ after MRA", func(t *testing.T) {
		w, a, p := start(attrREJ)
		p.on = nil
		a.connect(p)
		w.run(6 * time.Second) // the REQ comes again, and MRA makes the third one late
		reject(t, p.log[0], p)
		w.run(2 * time.Minute)
		rejected(t, a, p)
	})
	t.Run("DREP", func(t *testing.T) {
		w, a, p := start(attrDREP)
		id := a.connect(p)
		w.settle()
		testutil.Must(t, id.Disconnect())
		w.run(10 * time.Second)
		testutil.Equal(t, a.count(verbs.EventDisconnected), 1, "ends")
		testutil.Equal(t, a.log[1].Status, 0, "status")
	})
}

// TestIPv6 connects to a wildcard listener.
func TestIPv6(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	at := netip.MustParseAddr("2001:db8::2")
	l := testutil.Value(p.cm.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port), 0, 0))(t)
	testutil.True(t, l.Device() == nil, "a wildcard listener has a device")
	p.serve()
	id := testutil.Value(a.cm.NewID())(t)
	testutil.Must(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(at, port), 0))
	testutil.Must(t, id.ResolveRoute(0))
	w.settle()
	a.queue(id)
	testutil.Must(t, id.Connect(verbs.ConnParam{}))
	w.settle()
	testutil.MustEqual(t, a.count(verbs.EventEstablished), 1, "connections")
	got := p.log[0].ID
	testutil.Equal(t, got.Local(), netip.AddrPortFrom(at, port), "local address")
	testutil.Equal(t, got.Remote(), id.Local(), "remote address")
}

// TestKilled: after a process was killed, the next one with its memory disconnects its live
// connections at once, and no others.
func TestKilled(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	memory := make([]byte, memorySize)
	opt := Options{Memory: func(int) []byte { return memory }}
	a, p := w.host(1, Options{}), w.host(2, opt)
	p.m.resume()
	p.serving()
	var live []verbs.ID
	for i := range 4 {
		id := a.connect(p)
		w.settle()
		if i%2 == 0 {
			live = append(live, id)
			continue
		}
		testutil.Must(t, id.Disconnect())
		w.run(ever)
		a.end(id)
	}
	a.log, w.sent = nil, nil
	ended := func() (ids []verbs.ID) {
		w.settle()
		for _, ev := range a.log {
			if ev.Type == verbs.EventDisconnected {
				ids = append(ids, ev.ID)
			}
		}
		return ids
	}
	next := func() {
		p.m = newManager(p.net, p.m.conn, p.dev, opt)
		p.cm = testutil.Value(p.m.NewCM())(t)
		p.m.resume()
	}
	testutil.Equal(t, len(ended()), 0, "connections that ended before")
	next()
	got := ended()
	testutil.True(t, len(got) == len(live) && slices.Contains(got, live[0]) &&
		slices.Contains(got, live[1]), "disconnected: %v, want %v", got, live)
	for _, id := range live {
		testutil.Must(t, id.Disconnect())
		a.end(id)
	}
	w.run(ever)
	a.empty("active")
	p.empty("passive")
	w.sent = nil
	next()
	testutil.Equal(t, len(ended()), len(live), "another process disconnects nothing")
	testutil.Equal(t, len(w.sent), 0, "messages")
	p.listen(port, 0)
	id := a.connect(p)
	w.settle()
	testutil.Must(t, id.Disconnect())
	w.run(ever)
	a.end(id)
	testutil.True(t, !slices.ContainsFunc(memory[len(savedHeader):], func(b byte) bool {
		return b != 0
	}), "an entry is left")
}

// TestManyKilled: the connections of a process that was killed are disconnected in pieces, the
// first at once. The memory keeps the others until their turn.
func TestManyKilled(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	memory := make([]byte, memorySize)
	p := w.host(1, Options{Memory: func(int) []byte { return memory }})
	p.m.resume()
	for id := range 2*oldPiece + 1 {
		c := &conn{local: uint32(id + 1), remote: uint32(id + 1)}
		remote := netip.AddrFrom4([4]byte{192, 0, 3, byte(id)})
		c.peer.Path = wire.Path{Local: p.addr, Remote: remote}
		p.m.saved.save(c)
	}
	p.m = newManager(p.net, p.m.conn, p.dev, p.m.opt)
	p.m.resume()
	for _, want := range []int{oldPiece, 2 * oldPiece, 2*oldPiece + 1} {
		w.settle()
		testutil.Equal(t, len(w.sent), want, "messages")
		testutil.Equal(t, len(p.m.saved.old), 2*oldPiece+1-want, "connections in the memory")
		w.mem.Advance(oldTime)
	}
}

// TestMemoryFull: there is an entry for each connection that the target admits. Further ones are
// not saved, and entries are used again. Memory of another version is not read.
func TestMemoryFull(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	memory := make([]byte, memorySize)
	for i := range memory {
		memory[i] = 1
	}
	p := w.host(1, Options{Memory: func(int) []byte { return memory }})
	p.m.resume()
	testutil.Equal(t, len(p.m.conns), 0, "connections of another version")
	save := func(id int) *conn {
		c := &conn{local: uint32(id)}
		p.m.saved.save(c)
		return c
	}
	first := save(1)
	for id := 2; id <= rdma.QueuesLimit; id++ {
		testutil.MustTrue(t, save(id).saved != 0, "connection %d has no entry", id)
	}
	for len(p.m.saved.free) > 0 {
		save(1)
	}
	last := save(1)
	testutil.Equal(t, last.saved, 0, "the entry beyond the last")
	p.m.saved.forget(first)
	p.m.saved.save(last)
	testutil.True(t, last.saved != 0, "an entry that is free is not used")
}
