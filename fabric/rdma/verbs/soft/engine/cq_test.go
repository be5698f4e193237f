package engine

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// waitReadable waits up to ms milliseconds for a descriptor to become readable.
func waitReadable(fd, ms int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, ms)
		if err != unix.EINTR {
			return err == nil && n == 1
		}
	}
}

func readable(fd int) bool { return waitReadable(fd, 0) }

// patience is the time to wait for an event that must come, in milliseconds.
const patience = 30_000

func newCQ(t testing.TB, d *Device, entries int, ch verbs.CompChannel, vector int) *CQ {
	t.Helper()
	cq := testutil.Value(d.CreateCQ(entries, ch, vector))(t)
	t.Cleanup(func() { testutil.Check(t, cq.Destroy()) })
	return cq.(*CQ)
}

func newChannel(t testing.TB, d *Device) *Channel {
	t.Helper()
	ch := testutil.Value(d.CreateCompChannel())(t)
	t.Cleanup(func() { testutil.Check(t, ch.Close()) })
	return ch.(*Channel)
}

// TestChannel: a goroutine arms, polls and sleeps while completions come from packets, closures and
// kicks. It never sleeps with a completion in the queue. Sleepers watch the channel as a level, as
// an edge like the reactor of the target, and with a background goroutine.
func TestChannel(t *testing.T) {
	for _, background := range []bool{false, true} {
		for _, edge := range []bool{false, true} {
			t.Run(fmt.Sprintf("background=%v,edge=%v", background, edge), func(t *testing.T) {
				mem := wiretest.New(wiretest.Options{})
				a := device(t, mem, "a", addrA, Options{Background: background})
				b := device(t, mem, "b", addrB, Options{Background: true})
				sleepAndWake(t, a, b, edge)
			})
		}
	}
}

func sleepAndWake(t *testing.T, a, b *Device, edge bool) {
	const n, window = 600, 32
	e, ch := a.Engine(0), newChannel(t, a)
	cq := newCQ(t, a, 1024, ch, 0)
	var consumed [3]int
	var posted [3]atomic.Int64
	var room [3]chan struct{} // completions that may be made
	push := func(kind uint64) { testutil.True(t, cq.Push(&verbs.WC{WRID: kind}), "overrun") }
	// Packets of B, one completion in three.
	to := attach(t, e, &endpoint{onReceive: func(ep *endpoint) {
		if ep.last%3 == 0 {
			push(0)
		}
	}})
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	kicked := int64(0)
	kick := attach(t, e, &endpoint{onRun: func(*endpoint) bool {
		for ; kicked < posted[2].Load(); kicked++ {
			push(2)
		}
		return false
	}})
	for kind, post := range []func(){
		func() { b.Engine(0).Do(func() { from.send += 3; b.Engine(0).Schedule(&from.Handle) }) },
		func() { e.Do(func() { push(1) }) },
		kick.Kick,
	} {
		room[kind] = make(chan struct{}, window)
		ended := make(chan struct{})
		t.Cleanup(func() { <-ended })
		go func() {
			defer close(ended)
			for range n {
				room[kind] <- struct{}{}
				posted[kind].Add(1)
				post()
			}
		}()
	}

	sleep := func() bool { return waitReadable(ch.FD(), patience) }
	if edge {
		ep := testutil.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
		defer unix.Close(ep)
		testutil.Must(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ch.FD(),
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
		sleep = func() bool {
			for {
				k, err := unix.EpollWait(ep, make([]unix.EpollEvent, 1), patience)
				if err != unix.EINTR {
					return k == 1
				}
			}
		}
	}
	var wcs [8]verbs.WC
	poll := func() int {
		k := testutil.Value(cq.Poll(wcs[:]))(t)
		for _, wc := range wcs[:k] {
			consumed[wc.WRID]++
			<-room[wc.WRID]
		}
		return k
	}
	for sleeps := 0; ; {
		for poll() > 0 {
		}
		if consumed == [3]int{n, n, n} {
			t.Logf("slept %d times", sleeps)
			return
		}
		testutil.Must(t, cq.ReqNotify())
		if poll() > 0 {
			continue
		}
		sleeps++
		testutil.MustTrue(t, sleep(), "asleep with %d of %d completions consumed", consumed, n)
		if !edge || sleeps%64 == 0 {
			testutil.Value(ch.Drain())(t)
		}
	}
}

// TestNotify: the channel is readable after a completion of an armed queue, once per ReqNotify.
func TestNotify(t *testing.T) {
	d := alone(t, Options{})
	e, ch := d.Engine(0), newChannel(t, d)
	cq := newCQ(t, d, 8, ch, 0)
	var wcs [8]verbs.WC
	complete := func() { e.Do(func() { cq.Push(&verbs.WC{}) }) }
	drain := func(want int) {
		t.Helper()
		testutil.Equal(t, testutil.Value(ch.Drain())(t), want, "events")
		testutil.True(t, !readable(ch.FD()), "readable after Drain")
	}
	complete()
	drain(0)
	testutil.Equal(t, testutil.Value(cq.Poll(wcs[:]))(t), 1, "completions")
	testutil.Must(t, cq.ReqNotify())
	testutil.Must(t, cq.ReqNotify())
	testutil.Equal(t, e.sleepers.Load(), 1, "sleepers")
	testutil.Equal(t, testutil.Value(cq.Poll(wcs[:]))(t), 0, "completions")
	testutil.True(t, !readable(ch.FD()), "readable without anything")
	complete()
	complete()
	testutil.True(t, readable(ch.FD()), "not readable after a completion")
	testutil.Equal(t, testutil.Value(cq.Poll(wcs[:]))(t), 2, "completions")
	drain(1)
	testutil.Equal(t, e.sleepers.Load(), 0, "sleepers")
	e.conn.Wake()
	testutil.True(t, !readable(ch.FD()), "readable although no queue is armed")
	testutil.Must(t, cq.ReqNotify())
	testutil.True(t, readable(ch.FD()), "not readable although the engine has work")
}

// TestUnfinishedTurn: a sleeper is woken for the work that a turn leaves.
func TestUnfinishedTurn(t *testing.T) {
	d := alone(t, Options{})
	e, ch := d.Engine(0), newChannel(t, d)
	cq := newCQ(t, d, 8, ch, 0)
	left := 5
	ep := attach(t, e, &endpoint{onRun: func(*endpoint) bool { left--; return left > 0 }})
	testutil.Must(t, cq.ReqNotify())
	ep.Kick()
	for left > 0 {
		testutil.MustTrue(t, readable(ch.FD()), "not readable with %d runs left", left)
		testutil.Value(cq.Poll(nil))(t)
	}
	testutil.True(t, !readable(ch.FD()), "readable without work")
	// Work that was left before the queue was armed.
	left = 5
	other := newCQ(t, d, 8, newChannel(t, d), 0)
	for cq.engine.sleepers.Load() > 0 {
		e.Do(func() { cq.Push(&verbs.WC{}) })
		testutil.Value(cq.Poll(make([]verbs.WC, 1)))(t)
	}
	ep.Kick()
	testutil.Must(t, other.ReqNotify())
	testutil.Value(other.Poll(nil))(t)
	testutil.True(t, readable(other.ch.FD()), "not readable with %d runs left", left)
}

// TestWoken: an engine with a sleeper wakes it for everything that is left: packets after a full
// batch, packets in the inbox, deadlines.
func TestWoken(t *testing.T) {
	mem, a, b := pair(t, Options{})
	e, ch := a.Engine(0), newChannel(t, a)
	cq := newCQ(t, a, 8, ch, 0)
	testutil.Must(t, cq.ReqNotify())
	to := attach(t, e, &endpoint{})
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	turn := func(what string) {
		t.Helper()
		testutil.MustTrue(t, readable(ch.FD()), "not readable: %s", what)
		testutil.Value(cq.Poll(nil))(t)
	}
	from.sendAll(2*wire.MaxBatch + 5)
	for to.received < 2*wire.MaxBatch+5 {
		turn("packets have arrived")
	}
	for range 2*wire.MaxBatch + 5 {
		a.HandOver(packetTo(to.num, 1))
	}
	for to.received < 4*wire.MaxBatch+10 {
		turn("packets are in the inbox")
	}
	var eps [2*maxExpired + 5]*endpoint // Poll makes two turns
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{})
		e.Do(func() { e.SetDeadline(&eps[i].Handle, e.Now()+10) })
	}
	testutil.True(t, !readable(ch.FD()), "readable before the deadlines")
	mem.Advance(10)
	turn("deadlines have passed")
	turn("more deadlines have passed")
	// The timer has fired for this time already.
	e.Do(func() { e.SetDeadline(&eps[0].Handle, e.Now()) })
	turn("a deadline has passed when it was set")
	testutil.Equal(t, eps[0].expired, 2, "deadlines expired")
	testutil.True(t, !readable(ch.FD()), "readable without work")
}

// TestLeftPackets: a sleeper is woken for packets that a turn of Poll has left, also if a call of
// Do comes between the turns of Poll.
func TestLeftPackets(t *testing.T) {
	_, a, b := pair(t, Options{})
	e, ch := a.Engine(0), newChannel(t, a)
	testutil.Must(t, newCQ(t, a, 8, ch, 0).ReqNotify())
	to := attach(t, e, &endpoint{})
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	from.sendAll(2*wire.MaxBatch + 1)
	e.makeStep(true)
	testutil.Equal(t, to.received, wire.MaxBatch, "packets")
	testutil.True(t, !readable(ch.FD()), "readable although Poll makes another turn")
	e.Do(func() {})
	testutil.True(t, e.left.Load(), "Poll makes no other turn")
	e.makeStep(false)
	testutil.True(t, readable(ch.FD()), "not readable although a packet waits")
}

// TestSleeperBeside: packets that a turn of Poll has left wake the sleeper of another queue, whose
// own Poll found the engine held. Nobody may poll the first queue again.
func TestSleeperBeside(t *testing.T) {
	_, a, b := pair(t, Options{})
	busy, asleep := newCQ(t, a, 8, nil, 0), newCQ(t, a, 8, newChannel(t, a), 0)
	testutil.Must(t, asleep.ReqNotify())
	to := attach(t, a.Engine(0), &endpoint{onReceive: func(ep *endpoint) {
		if ep.received == 1 {
			testutil.Value(asleep.Poll(nil))(t)
			busy.Push(&verbs.WC{})
		}
	}})
	attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num).sendAll(4 * wire.MaxBatch)
	testutil.Equal(t, testutil.Value(busy.Poll(make([]verbs.WC, 1)))(t), 1, "completions")
	testutil.True(t, to.received < 4*wire.MaxBatch, "no packet is left")
	testutil.True(t, readable(asleep.ch.FD()), "not readable although packets wait")
}

// noWakes is a socket that is not woken.
type noWakes struct {
	wire.Conn
	t *testing.T
}

func (n noWakes) Wake() { n.t.Error("a system call wakes the goroutine that polls") }

// TestPostsBetweenPolls: posts between two polls do not wake the goroutine that polls, although the
// first poll has left packets.
func TestPostsBetweenPolls(t *testing.T) {
	_, a, b := pair(t, Options{})
	e := a.Engine(0)
	cq := newCQ(t, a, 64, newChannel(t, a), 0)
	testutil.Must(t, cq.ReqNotify())
	to := attach(t, e, &endpoint{onReceive: func(*endpoint) { cq.Push(&verbs.WC{}) }})
	attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num).sendAll(4 * wire.MaxBatch)
	socket := e.conn.Conn
	held(e, func() { e.conn.Conn = noWakes{socket, t} })
	wcs := make([]verbs.WC, wire.MaxBatch)
	for range 3 {
		testutil.Equal(t, testutil.Value(cq.Poll(wcs))(t), wire.MaxBatch, "completions")
		to.Kick()
	}
	held(e, func() { e.conn.Conn = socket })
	testutil.Equal(t, testutil.Value(cq.Poll(wcs))(t), wire.MaxBatch, "completions")
}

// TestAnswersBeforeDeadlines: while packets wait, deadlines do, but not for ever, and only once.
func TestAnswersBeforeDeadlines(t *testing.T) {
	mem, a, b := pair(t, Options{})
	e, expired := a.Engine(0), 0
	var eps [3 * maxExpired]*endpoint
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onExpire: func(*endpoint) { expired++ }})
	}
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, eps[0].num)
	for _, tt := range []struct{ packets, deadlines, turns int }{
		{wire.MaxBatch - 1, 1, 0},
		{3*wire.MaxBatch - 1, 1, 2},
		{20 * wire.MaxBatch, 1, maxPutOff},
		{20 * wire.MaxBatch, len(eps), maxPutOff + 2},
	} {
		for _, ep := range eps[:tt.deadlines] {
			e.Do(func() { e.SetDeadline(&ep.Handle, e.Now()+1) })
		}
		mem.Advance(1)
		expired, eps[0].received = 0, 0
		from.sendAll(tt.packets)
		for n := 1; expired < tt.deadlines; n++ {
			testutil.MustTrue(t, n <= tt.turns+1, "%d packets: %d turns", tt.packets, n)
			e.Step()
			testutil.Equal(t, eps[0].received, min(n*wire.MaxBatch, tt.packets), "packets")
			testutil.Equal(t, expired > 0, n > min(tt.turns, maxPutOff), "a deadline has passed")
		}
		settle(mem, a)
	}
}

// TestAttended: the background goroutine leaves the packets to a goroutine that polls, but not to
// one that has armed and may sleep. It takes them when nobody polls any more.
func TestAttended(t *testing.T) {
	d := alone(t, Options{})
	ch := newChannel(t, d)
	cq, other := newCQ(t, d, 8, ch, 0), newCQ(t, d, 8, ch, 0)
	poll := func() { testutil.Value(cq.Poll(make([]verbs.WC, 8)))(t) }
	polls := func() { testutil.Value(other.Poll(nil))(t) }
	arm := func() { testutil.Must(t, cq.ReqNotify()) }
	arms := func() { testutil.Must(t, other.ReqNotify()) }
	complete := func() { held(d.Engine(0), func() { cq.Push(&verbs.WC{}) }) }
	for i, tt := range []struct {
		do   []func()
		want bool
	}{
		{nil, false},
		{[]func(){poll}, true},
		{[]func(){poll, arm}, false},
		{[]func(){poll}, false},
		{[]func(){poll}, true},
		{[]func(){arm, poll}, false},
		{[]func(){arm, complete, poll}, true},
		{[]func(){poll}, false},
		{[]func(){poll}, true},
		{[]func(){arm, arms, poll, polls}, false},
	} {
		for _, do := range tt.do {
			do()
		}
		testutil.Equal(t, d.Engine(0).attended.Load(), tt.want, "somebody polls, step %d", i)
	}

	mem := wiretest.New(wiretest.Options{Manual: true})
	a := device(t, mem, "a", addrA, Options{Background: true})
	b := device(t, mem, "b", addrB, Options{})
	to := attach(t, a.Engine(0), &endpoint{})
	attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num).sendAll(4 * wire.MaxBatch)
	testutil.Value(newCQ(t, a, 8, nil, 0).Poll(nil))(t)
	testutil.Until(t, "all packets are taken", func() bool {
		n := 0
		held(a.Engine(0), func() { n = to.received })
		return n == 4*wire.MaxBatch
	})
}

// TestPutOff: beside a background goroutine, too, a poll that finds completions puts packets off
// until its caller posts more, and they leave without another poll. A goroutine that arms does not
// wait until the background goroutine has rested.
func TestPutOff(t *testing.T) {
	mem := wiretest.New(wiretest.Options{Manual: true})
	a := device(t, mem, "a", addrA, Options{Background: true, pause: time.Hour})
	b := device(t, mem, "b", addrB, Options{})
	e := a.Engine(0)
	cq := newCQ(t, a, 8, newChannel(t, a), 0)
	var putOff atomic.Bool
	var sent atomic.Int32
	to := attach(t, e, &endpoint{onRun: func(*endpoint) (again bool) {
		if e.Polled() && !putOff.Swap(true) {
			return true
		}
		sent.Add(1)
		return false
	}})
	to.onReceive = func(*endpoint) { cq.Push(&verbs.WC{}) }
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	poll := func() int { return testutil.Value(cq.Poll(make([]verbs.WC, 8)))(t) }
	poll()
	from.sendAll(1)
	testutil.Until(t, "the other goroutine rests", func() bool { return !e.attended.Load() })
	testutil.Equal(t, poll(), 1, "completions")
	testutil.True(t, putOff.Load(), "the poll puts nothing off")
	testutil.Until(t, "packets leave", func() bool { return sent.Load() == 1 })
	testutil.Must(t, cq.ReqNotify())
	testutil.Equal(t, poll(), 0, "completions")
	from.sendAll(1)
	testutil.Until(t, "another packet is taken", func() bool { return sent.Load() > 1 })
}

// TestPollMakesNoEvent: an armed queue stays armed, without an event, while polls take all
// completions that come in their turns. One that a poll leaves makes the event.
func TestPollMakesNoEvent(t *testing.T) {
	_, a, b := pair(t, Options{})
	e, ch := a.Engine(0), newChannel(t, a)
	cq := newCQ(t, a, 8, ch, 0)
	testutil.Must(t, cq.ReqNotify())
	to := attach(t, e, &endpoint{})
	to.onReceive = func(*endpoint) { cq.Push(&verbs.WC{}) }
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	for _, c := range []struct{ packets, room, events int }{{1, 4, 0}, {2, 4, 0}, {3, 2, 1}} {
		from.send = c.packets
		from.Kick()
		testutil.True(t, readable(ch.FD()), "not readable with %d packets", c.packets)
		n := testutil.Value(cq.Poll(make([]verbs.WC, c.room)))(t)
		testutil.Equal(t, n, min(c.packets, c.room), "completions")
		testutil.Equal(t, testutil.Value(ch.Drain())(t), c.events, "events of %d packets",
			c.packets)
	}
}

// TestWokenByUDP: packets that wait at a socket make no new edge when one of them is received. A
// sleeper that watches for edges, as the target's reactor does, is woken for all of them.
func TestWokenByUDP(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.3")
	d := testutil.Value(New(wire.NewUDP(wire.UDPOptions{
		IPv4: local, IPv6: netip.IPv6Loopback(), Port: testutil.FreePort(t),
	}), Options{Engines: 2}))(t)
	t.Cleanup(func() { testutil.Check(t, d.Close()) })
	e, ch := d.Engine(0), newChannel(t, d)
	cq := newCQ(t, d, 8, ch, 0)
	to := attach(t, e, &endpoint{})
	from := attach(t, d.Engine(1), &endpoint{}).connect(local, local, to.num)
	ep := testutil.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
	defer unix.Close(ep)
	testutil.Must(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ch.FD(),
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
	testutil.Must(t, cq.ReqNotify())
	const n = 3*wire.MaxBatch + 5
	from.sendAll(n)
	for to.received < n {
		testutil.MustTrue(t, waitReadable(ep, patience), "asleep with %d of %d packets",
			to.received, n)
		testutil.Value(unix.EpollWait(ep, make([]unix.EpollEvent, 1), 0))(t)
		testutil.Value(cq.Poll(nil))(t)
	}
}

func TestOverrun(t *testing.T) {
	d := alone(t, Options{})
	events := make(chan verbs.AsyncEvent, 4)
	stop := testutil.Value(d.Watch(func(ev verbs.AsyncEvent) { events <- ev }))(t)
	defer stop()
	cq := newCQ(t, d, 3, nil, 0)
	other := newCQ(t, d, 3, nil, 0)
	d.Engine(0).Do(func() {
		for i := range 4 {
			testutil.True(t, cq.Push(&verbs.WC{WRID: uint64(i)}), "push %d", i)
		}
		for range 2 {
			testutil.True(t, !cq.Push(&verbs.WC{}), "push into a full queue")
		}
		testutil.True(t, other.Push(&verbs.WC{}), "push into the neighbour")
	})
	ev := testutil.Receive(t, "CQ_ERR", events)
	testutil.True(t, ev.Type == verbs.AsyncCQErr && ev.CQ == verbs.CQ(cq), "event %+v", ev)
	var wcs [4]verbs.WC
	testutil.Is(t, testutil.Err(cq.Poll(wcs[:])), errOverrun, "poll")
	testutil.Equal(t, testutil.Value(other.Poll(wcs[:]))(t), 1, "completions of the neighbour")
	d.Engine(0).Do(func() { testutil.True(t, !cq.Push(&verbs.WC{}), "push after an overrun") })
	d.Raise(verbs.AsyncEvent{Type: verbs.AsyncPortErr})
	ev = testutil.Receive(t, "PORT_ERR", events)
	testutil.Equal(t, ev.Type, verbs.AsyncPortErr, "one CQ_ERR only, then this event")
}

// TestWatch: every watcher gets every event in order until it stops, one call at a time.
func TestWatch(t *testing.T) {
	d := alone(t, Options{})
	d.Raise(verbs.AsyncEvent{Type: verbs.AsyncPortErr}) // nobody watches
	var calls, got atomic.Int32
	const n = 100
	done := make(chan struct{})
	stop := testutil.Value(d.Watch(func(ev verbs.AsyncEvent) {
		testutil.True(t, calls.Add(1) == 1 && ev.QPNum == uint32(got.Load()),
			"event %d: want %d, one at a time", ev.QPNum, got.Load())
		calls.Add(-1)
		if got.Add(1) == n {
			close(done)
		}
	}))(t)
	never := testutil.Value(d.Watch(func(verbs.AsyncEvent) { t.Error("called after stop") }))(t)
	never()
	for i := range n {
		d.Engine(0).Do(func() {
			d.Raise(verbs.AsyncEvent{Type: verbs.AsyncQPLastWQEReached, QPNum: uint32(i)})
		})
	}
	testutil.Receive(t, "the last event", done)
	stop()
	d.Raise(verbs.AsyncEvent{Type: verbs.AsyncPortErr})
	d.mu.Lock()
	defer d.mu.Unlock()
	testutil.Equal(t, len(d.watchers), 0, "watchers")
}

// TestBusy: an object that is used cannot be freed, and cannot be used after it was freed.
func TestBusy(t *testing.T) {
	d := alone(t, Options{})
	ch := testutil.Value(d.CreateCompChannel())(t)
	cq := testutil.Value(d.CreateCQ(8, ch, 0))(t).(*CQ)
	pd := testutil.Value(d.AllocPD())(t).(*PD)
	srq := testutil.Value(pd.CreateSRQ(verbs.SRQInit{MaxWR: 4, MaxSGE: 1}))(t).(*SRQ)
	testutil.Must(t, cq.Hold())
	testutil.Must(t, srq.Hold())
	for name, err := range map[string]error{
		"CQ": cq.Destroy(), "SRQ": srq.Destroy(), "PD": pd.Dealloc(), "channel": ch.Close(),
	} {
		testutil.Is(t, err, unix.EBUSY, "free the %s", name)
	}
	cq.Release()
	srq.Release()
	testutil.Must(t, cq.Destroy())
	testutil.Must(t, ch.Close())
	testutil.Must(t, srq.Destroy())
	testutil.Must(t, pd.Dealloc())
	for name, err := range map[string]error{
		"CQ": cq.Destroy(), "SRQ": srq.Destroy(), "PD": pd.Dealloc(), "channel": ch.Close(),
		"held CQ": cq.Hold(), "held SRQ": srq.Hold(), "held PD": pd.Hold(),
		"CQ of the channel": testutil.Err(d.CreateCQ(8, ch, 0)),
		"memory of the PD":  testutil.Err(pd.RegMR(make([]byte, 8), 0)),
		"SRQ of the PD":     testutil.Err(pd.CreateSRQ(verbs.SRQInit{MaxWR: 4})),
		"empty CQ":          testutil.Err(d.CreateCQ(0, nil, 0)),
		"CQ of vector -1":   testutil.Err(d.CreateCQ(1, nil, -1)),
	} {
		testutil.Is(t, err, unix.EINVAL, "use the freed %s", name)
	}
	testutil.Equal(t, d.cqs.Load()+d.srqs.Load()+d.mrs.Load(), 0, "objects counted")
}

// TestAllocations: the path of packets and completions allocates nothing.
func TestAllocations(t *testing.T) {
	mem, a, b := pair(t, Options{Engines: 2})
	e := a.Engine(1)
	ch := newChannel(t, a)
	cq := newCQ(t, a, 64, ch, 1)
	ring := testutil.Value(NewRecvRing(16, 1))(t)
	var wr verbs.RecvWR
	to := attach(t, e, &endpoint{onReceive: func(ep *endpoint) {
		ring.Take(&wr)
		e.SetDeadline(&ep.Handle, e.Now()+5)
		cq.Push(&verbs.WC{WRID: wr.WRID})
	}})
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	var wcs [16]verbs.WC
	recvs := make([]verbs.RecvWR, 8)
	moved := packetTo(to.num, 1)
	a.HandOver(moved)
	round := func() {
		if n, err := ring.Post(recvs); n != len(recvs) || err != nil {
			t.Fatal(n, err)
		}
		testutil.Must(t, cq.ReqNotify())
		from.send = 7
		from.Kick()
		a.HandOver(moved)
		b.Engine(0).Step()
		for n := 0; n < 8; {
			k, err := cq.Poll(wcs[:])
			testutil.Must(t, err)
			n += k
		}
		if _, err := ch.Drain(); err != nil {
			t.Fatal(err)
		}
		mem.Advance(6)
		e.Step()
	}
	round()
	testutil.Equal(t, testutil.AllocsPerRun(100, round), 0, "allocations")
}
