package cm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// An attacker sends messages of its choice with addresses of its choice.
type attacker struct {
	w    *world
	conn wire.Conn
	addr netip.Addr
}

func (w *world) attacker() *attacker {
	addr := netip.MustParseAddr("192.0.2.66")
	conns := testutil.Value(w.mem.Host("attacker", addr).Open(1))(w.t)
	w.conns = append(w.conns, conns...)
	return &attacker{w: w, conn: conns[1], addr: addr}
}

// send sends a message from an address, which may be forged.
func (x *attacker) send(from, to netip.Addr, q *message) {
	var mad [madSize]byte
	q.encode(mad[:])
	x.raw(from, to, qkey, mad[:])
}

func (x *attacker) raw(from, to netip.Addr, key uint32, mad []byte) {
	x.write(from, to, key, mad)
	testutil.Value(x.conn.Recv())(x.w.t)
	x.w.settle()
}

// write is raw, and nobody reads the message yet.
func (x *attacker) write(from, to netip.Addr, key uint32, mad []byte) {
	b := x.conn.Alloc(&wire.Path{Local: from, Remote: to}, packet.BTHSize+packet.DETHSize+len(mad))
	bth := packet.BTH{Opcode: packet.UDSendOnly, PKey: packet.PKeyDefault, QPN: wire.CMQPN}
	bth.Put(b)
	packet.DETH{QKey: key, SrcQP: wire.CMQPN}.Put(b[packet.BTHSize:])
	copy(b[packet.BTHSize+packet.DETHSize:], mad)
	x.conn.Flush()
}

// request returns a good REQ, different for each n.
func (x *attacker) request(from, to netip.Addr, n int) *message {
	q := &message{
		attr: attrREQ, tid: uint64(n), local: uint32(n) + 1, qpn: uint32(n) + 2, psn: uint32(n),
		request: request{
			service: serviceTCP | port, remoteWait: 20, localWait: 20, retries: 7, maxCMRetries: 15,
			pkey: packet.PKeyDefault, mtu: 3, from: from, to: to, ackTimeout: 17,
		},
	}
	ip := ipPrivate{port: 50000, from: from, to: to}
	ip.encode(q.private[:])
	return q
}

// replies counts the messages that a machine has sent to an address.
func (w *world) replies(from, to netip.Addr) (reps, all int) {
	for _, s := range w.sent {
		if s.from == from && s.to == to {
			all++
			if s.attr == attrREP {
				reps++
			}
		}
	}
	return reps, all
}

// connected makes a machine that has a connection to another one.
func (w *world) connected(a, p *machine) verbs.ID {
	w.t.Helper()
	id := a.connect(p)
	w.settle()
	testutil.MustEqual(w.t, a.types()[len(a.log)-1], verbs.EventEstablished, "event of a neighbor")
	return id
}

// TestFloodFromOneAddress: a host cannot have more half-open connections than its share, each is
// answered three times, and other hosts do not notice.
func TestFloodFromOneAddress(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	x := w.attacker()
	l := p.serving()
	for n := range 1000 {
		x.send(x.addr, p.addr, x.request(x.addr, p.addr, n))
	}
	testutil.Equal(t, p.m.total[classStranger], maxHalfHost, "half-open connections")
	testutil.Equal(t, p.m.stats.Dropped.Load(), 1000-maxHalfHost, "requests dropped")
	w.connected(a, p)
	w.run(time.Minute)
	reps, all := w.replies(p.addr, x.addr)
	testutil.Equal(t, [2]int{reps, all}, [2]int{3 * maxHalfHost, 3 * maxHalfHost}, "answers")
	testutil.Equal(t, p.m.total[classStranger], 0, "half-open connections left")
	testutil.Equal(t, p.count(verbs.EventUnreachable), maxHalfHost, "events")
	a.end(a.log[0].ID)
	p.ended(l, "after the flood")
}

// TestFloodFromForgedAddresses: strangers together have a share. A host with a connection can make
// more of them meanwhile, and everybody can afterwards.
func TestFloodFromForgedAddresses(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	a, b, p := w.host(1, Options{}), w.host(3, Options{}), w.host(2, Options{})
	x := w.attacker()
	l := p.serving()
	w.connected(a, p)
	const n = 3 * maxHalfStrangers
	forged := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
	}
	for i := range n {
		x.send(forged(i), p.addr, x.request(forged(i), p.addr, i))
	}
	testutil.Equal(t, p.m.total[classStranger], maxHalfStrangers, "half-open connections")
	testutil.Equal(t, len(p.m.hosts), maxHalfStrangers+1, "hosts")
	w.connected(a, p)
	b.connect(p)
	w.settle()
	testutil.Equal(t, len(b.log), 0, "events of a stranger during the flood")
	w.run(time.Minute)
	testutil.Equal(t, b.count(verbs.EventEstablished), 1, "connections after the flood")
	for i := range n {
		reps, all := w.replies(p.addr, forged(i))
		testutil.MustTrue(t, reps <= 3 && all == reps, "%d REPs, %d messages to %v", reps, all,
			forged(i))
	}
	for _, h := range []*machine{a, b} {
		for _, ev := range h.log {
			h.end(ev.ID)
		}
	}
	p.ended(l, "after the flood")
}

// TestFloodFromOneNetwork: a machine with all addresses of an IPv6 /64 has half of the share of
// strangers, so that others connect meanwhile.
func TestFloodFromOneNetwork(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	x := w.attacker()
	at := netip.AddrPortFrom(netip.IPv6Unspecified(), port) // IPv4 as well
	l := testutil.Value(p.cm.Listen(at, 0, 0))(t)
	p.serve()
	to := netip.MustParseAddr("2001:db8::2")
	forged := func(i int) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:1::%x", i))
	}
	for i := range 2 * maxHalfStrangers {
		x.send(forged(i), to, x.request(forged(i), to, i))
	}
	testutil.Equal(t, p.m.total[classStranger], maxHalfNetwork, "half-open connections")
	a.end(w.connected(a, p))
	p.ended(l, "after the flood")
}

// TestManyDeadlines: when the deadlines of all half-open connections pass at once, a step of the
// manager handles a few of them, and the other calls get their turn in between.
func TestManyDeadlines(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	p, x := w.host(2, Options{}), w.attacker()
	l := p.serving()
	for i := range maxHalfStrangers {
		from := netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
		x.send(from, p.addr, x.request(from, p.addr, i))
	}
	before := len(w.sent)
	w.mem.Advance(10 * time.Second)
	steps := 0
	for last, more := before, true; more; last = len(w.sent) {
		more = p.m.step()
		testutil.MustTrue(t, len(w.sent)-last <= maxExpired, "a step with %d messages",
			len(w.sent)-last)
		steps++
	}
	testutil.Equal(t, len(w.sent)-before, maxHalfStrangers, "messages")
	testutil.True(t, steps >= maxHalfStrangers/maxExpired, "%d steps", steps)
	p.ended(l, "after the deadlines")
}

// TestManyNotes: when the first packets of all half-open connections arrive at once, a step of the
// manager handles a few of them.
func TestManyNotes(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	p, x := w.host(2, Options{}), w.attacker()
	l := p.serving()
	for i := range maxHalfStrangers {
		from := netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
		x.send(from, p.addr, x.request(from, p.addr, i))
	}
	for _, q := range p.dev.queues {
		q.onFirst()
	}
	last := 0
	for more := true; more; {
		more = p.m.step()
		n := p.m.total[classLive]
		testutil.MustTrue(t, n-last <= maxNoted, "%d connections in a step", n-last)
		last = n
	}
	testutil.Equal(t, last, maxHalfStrangers, "connections")
	w.settle()
	for _, ev := range p.log {
		if ev.Type == verbs.EventConnectRequest {
			p.end(ev.ID)
		}
	}
	p.ended(l, "after the notes")
}

// TestRepeatedRequest: the same REQ again and again causes no further REP, and no further event.
func TestRepeatedRequest(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	p, x := w.host(2, Options{}), w.attacker()
	l := p.listen(port, 0)
	q := x.request(x.addr, p.addr, 5)
	for range 50 { // the program has not answered
		x.send(x.addr, p.addr, q)
	}
	_, all := w.replies(p.addr, x.addr)
	testutil.Equal(t, all, 49, "MRAs")
	testutil.MustEqual(t, len(p.log), 1, "events")
	p.queue(p.log[0].ID)
	testutil.Must(t, p.log[0].ID.Accept(verbs.ConnParam{}))
	for range 50 {
		x.send(x.addr, p.addr, q)
	}
	w.run(10 * time.Second)
	for range 50 {
		x.send(x.addr, p.addr, q)
	}
	reps, _ := w.replies(p.addr, x.addr)
	testutil.Equal(t, reps, 3, "REPs")
	q.qpn++ // another connection with the communication ID
	x.send(x.addr, p.addr, q)
	testutil.Equal(t, w.sent[len(w.sent)-1].reason, rejStale, "reason")
	w.run(ever)
	testutil.MustEqual(t, p.log[len(p.log)-1].Type, verbs.EventUnreachable, "event")
	p.end(p.log[0].ID)
	testutil.Must(t, l.Destroy())
	p.empty("after the repetitions")
}

// TestRefused: requests that the Manager refuses by itself, without telling the program.
func TestRefused(t *testing.T) {
	w := newWorld(t, wiretest.Options{MTU: 1500})
	p, x := w.host(2, Options{}), w.attacker()
	l := p.listen(port, 0)
	for i, c := range []struct {
		name   string
		change func(q *message)
		reason uint16
	}{
		{"nobody listens", func(q *message) { q.service++ }, rejInvalidServiceID},
		{"other port space", func(q *message) { q.service += 5 << 16 }, rejInvalidServiceID},
		{"service of another kind", func(q *message) { q.service |= 1 << 60 }, rejInvalidServiceID},
		{"unreliable connection", func(q *message) { q.transport = 1 }, rejInvalidTransport},
		{"MTU 4096 at an interface with 1500", func(q *message) { q.mtu = 5 }, rejInvalidMTU},
		{"MTU 0", func(q *message) { q.mtu = 0 }, rejInvalidMTU},
		{"MTU 15", func(q *message) { q.mtu = 15 }, rejInvalidMTU},
		{"source GID", func(q *message) { q.from = p.addr }, rejInvalidGID},
		{"destination GID", func(q *message) { q.to = x.addr }, rejInvalidGID},
		{"queue pair 0", func(q *message) { q.qpn = 0 }, rejUnsupported},
		{"queue pair 1", func(q *message) { q.qpn = 1 }, rejUnsupported},
		{"version of the private data", func(q *message) { q.private[0] = 1 }, rejUnsupported},
		{"IP version", func(q *message) { q.private[1] = 5 << 4 }, rejUnsupported},
	} {
		q := x.request(x.addr, p.addr, i)
		c.change(q)
		x.send(x.addr, p.addr, q)
		got := w.sent[len(w.sent)-1]
		testutil.True(t, got.attr == attrREJ && got.to == x.addr && got.of == ofREQ &&
			got.remote == q.local && got.tid == q.tid, "%s: answer %+v", c.name, got)
		testutil.Equal(t, got.reason, c.reason, "%s: reason", c.name)
		if c.reason == rejInvalidMTU {
			testutil.True(t, got.infoSize == 1 && got.info[0] == 3<<4, "%s: the MTU", c.name)
		}
	}
	testutil.Equal(t, len(p.log), 0, "events")
	testutil.Must(t, l.Destroy())
	p.empty("after refusals")
}

// TestNoMessage: packets to queue pair 1 that are not messages are counted.
func TestNoMessage(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	p, x := w.host(2, Options{}), w.attacker()
	var mad [madSize]byte
	x.request(x.addr, p.addr, 1).encode(mad[:])
	x.raw(x.addr, p.addr, qkey+1, mad[:])
	x.raw(x.addr, p.addr, qkey, mad[:252])
	x.raw(x.addr, p.addr, qkey, append(mad[:], 0, 0, 0, 0))
	x.raw(x.addr, p.addr, qkey, nil)
	testutil.Equal(t, p.m.stats.Invalid.Load(), 4, "packets")
	testutil.Equal(t, p.m.stats.Received.Load()+p.m.stats.Sent.Load(), 0, "messages")
}

// TestBacklog: requests beyond the backlog are dropped. The peer repeats them and gets through.
func TestBacklog(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	l := p.listen(port, 2)
	var ids []verbs.ID
	for range 5 {
		id := testutil.Value(a.cm.NewID())(t)
		testutil.Must(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(p.addr, port), 0))
		testutil.Must(t, id.ResolveRoute(0))
		a.queue(id)
		testutil.Must(t, id.Connect(verbs.ConnParam{}))
		ids = append(ids, id)
	}
	p.m.step() // the program reads no events
	testutil.Equal(t, l.(*ID).Pending, 2, "requests that wait")
	testutil.Equal(t, p.m.stats.Dropped.Load(), 3, "requests dropped")
	p.serve()
	w.run(ever)
	testutil.Equal(t, a.count(verbs.EventEstablished), 5, "connections")
	for _, id := range ids {
		a.end(id)
	}
	p.ended(l, "after the backlog")
}

// TestWithdrawnUnread: a request that is withdrawn before the program has seen it leaves nothing
// behind. Otherwise such requests would fill the backlog.
func TestWithdrawnUnread(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	x := w.attacker()
	l := p.listen(port, 8)
	for n := range 100 {
		q := x.request(x.addr, p.addr, n)
		r := &message{attr: attrREJ, local: q.local}
		r.reason = rejTimeout
		for _, q := range []*message{q, r} {
			var mad [madSize]byte
			q.encode(mad[:])
			x.write(x.addr, p.addr, qkey, mad[:])
		}
		p.m.step()
	}
	testutil.Equal(t, p.m.stats.Dropped.Load(), 0, "requests dropped")
	testutil.Equal(t, l.(*ID).Pending, 0, "requests that wait")
	n, events := p.cm.(*channel).Count()
	testutil.Equal(t, events, 0, "events")
	testutil.Equal(t, n, 1, "IDs")
	p.serve()
	w.connected(a, p)
}

// TestOtherQueuePair: a packet to another queue pair that was merged with messages goes there.
func TestOtherQueuePair(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	p := w.host(2, Options{})
	b := make([]byte, packet.BTHSize)
	h := packet.BTH{Opcode: packet.SendOnly, PKey: packet.PKeyDefault, QPN: 5}
	h.Put(b)
	p.m.receive(&wire.Packet{Data: b})
	testutil.Equal(t, p.dev.handed, 1, "packets handed over")
	testutil.Equal(t, p.m.stats.Invalid.Load(), 0, "packets that are not messages")
}

// TestStaleQueuePair: a request from a queue pair that a connection has is refused, and the
// connection stays: anybody could have sent it.
func TestStaleQueuePair(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	x := w.attacker()
	p.serving()
	id := w.connected(a, p)
	q := x.request(a.addr, p.addr, 7)
	q.qpn = a.dev.queues[0].num
	x.send(a.addr, p.addr, q)
	rej := w.sent[len(w.sent)-1]
	testutil.True(t, rej.attr == attrREJ && rej.reason == rejStale, "answer %+v", rej)
	testutil.Equal(t, a.count(verbs.EventDisconnected)+p.count(verbs.EventDisconnected), 0, "ends")
	testutil.MustEqual(t, id.(*ID).conn.state, established, "state")
}

// TestOthersConnections: every message about a connection, from an address that is not its peer's
// although both communication IDs are right, or from the peer's address with a wrong ID. In every
// state neither side notices.
func TestOthersConnections(t *testing.T) {
	stages := map[string]func(w *world, a, p *machine) verbs.ID{
		"request sent": func(w *world, a, p *machine) verbs.ID {
			w.lose = func(_ int, s *sent) bool { return s.attr == attrREQ && s.from == a.addr }
			id := a.connect(p)
			w.settle()
			return id
		},
		"request received": func(w *world, a, p *machine) verbs.ID {
			p.on = nil
			id := a.connect(p)
			w.settle()
			return id
		},
		"reply sent": func(w *world, a, p *machine) verbs.ID {
			w.lose = func(_ int, s *sent) bool { return s.attr == attrREP && s.from == p.addr }
			id := a.connect(p)
			w.settle()
			return id
		},
		"established": func(w *world, a, p *machine) verbs.ID { return w.connected(a, p) },
		"disconnecting": func(w *world, a, p *machine) verbs.ID {
			id := w.connected(a, p)
			w.lose = func(_ int, s *sent) bool { return s.attr == attrDREQ && s.from == a.addr }
			testutil.Must(w.t, id.Disconnect())
			w.settle()
			return id
		},
	}
	for stage, make := range stages {
		for a := attrMRA; a <= attrDREP; a++ {
			w, active, p := newWorldOfTwo(t, wiretest.Options{})
			x := w.attacker()
			p.serving()
			id := make(w, active, p)
			before := w.snapshot()
			c := id.(*ID).conn
			var passive *conn
			for _, x := range p.m.conns {
				passive = x
			}
			type ids struct{ local, remote uint32 }
			known := map[*machine]ids{active: {c.remote, c.local}}
			qpns := map[*machine]uint32{active: active.dev.queues[0].num}
			if passive != nil {
				known[p] = ids{passive.remote, passive.local}
				known[active] = ids{passive.local, c.local}
				if len(p.dev.queues) > 0 {
					qpns[p] = p.dev.queues[0].num
				}
			}
			for victim, k := range known {
				peer := active.addr
				if victim == active {
					peer = p.addr
				}
				for _, reason := range []uint16{rejConsumer, rejTimeout} {
					q := message{attr: a, local: k.local, remote: k.remote, qpn: qpns[victim]}
					q.reason = reason
					x.send(x.addr, victim.addr, &q) // all right but the address
					q.local ^= 0x100
					if victim == p || c.state != reqSent { // it does not know the other ID yet
						x.send(peer, victim.addr, &q) // all right but the peer's ID
					}
					q.remote ^= 0x100
					x.send(peer, victim.addr, &q) // the address alone
				}
			}
			testutil.Equal(t, w.snapshot(), before, "%s: after %v of an attacker", stage, a)
		}
	}
}

// snapshot describes the connections and events of all machines.
func (w *world) snapshot() (s string) {
	for _, h := range w.machines {
		s += fmt.Sprintf("%v: events %v;", h.addr, h.types())
		for _, c := range h.m.conns {
			var deadline int64
			if c.timer.Listed() {
				deadline = h.m.timers.At(&c.timer)
			}
			s += fmt.Sprintf(" state %d, %x-%x, tries %d, deadline %v, accounts %v, %+v;", c.state,
				c.local, c.remote, c.tries, deadline, h.m.total, c.peer)
		}
		for _, q := range h.dev.queues {
			s += fmt.Sprintf(" queue pair %d failed %v;", q.num, q.failed)
		}
	}
	return s
}

// TestWrongQueuePairInDREQ: a DREQ names the queue pair that it ends.
func TestWrongQueuePairInDREQ(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	x := w.attacker()
	p.serving()
	c := w.connected(a, p).(*ID).conn
	q := message{attr: attrDREQ, local: c.remote, remote: c.local, qpn: a.dev.queues[0].num + 1}
	x.send(p.addr, a.addr, &q)
	testutil.Equal(t, a.count(verbs.EventDisconnected), 0, "ends")
	q.qpn--
	x.send(p.addr, a.addr, &q) // as forged as can be: this one cannot be told from the peer's
	testutil.Equal(t, a.count(verbs.EventDisconnected), 1, "ends")
}

// TestUnknownConnection: answers to messages of connections that do not exist.
func TestUnknownConnection(t *testing.T) {
	w := newWorld(t, wiretest.Options{})
	p, x := w.host(2, Options{}), w.attacker()
	for a, want := range map[attr]attr{
		attrDREQ: attrDREP, // or the peer would repeat it for minutes
		attrREP:  attrREJ,
		attrRTU:  0, attrREJ: 0, attrMRA: 0, attrDREP: 0,
	} {
		w.sent = nil
		x.send(x.addr, p.addr, &message{attr: a, tid: 5, local: 7, remote: 9})
		switch {
		case want == 0:
			testutil.Equal(t, len(w.sent), 1, "messages after %v", a)
			continue
		case len(w.sent) != 2:
			t.Fatalf("%d messages after %v", len(w.sent), a)
		}
		got := w.sent[1]
		testutil.True(t, got.attr == want && got.tid == 5 && got.local == 9 && got.remote == 7 &&
			got.reason == map[attr]uint16{attrREJ: rejInvalidCommID}[want] && got.to == x.addr,
			"answer to %v: %+v", a, got)
	}
	p.empty("after strays")
}

// TestEndlessMRA: a peer cannot hold a request for ever.
func TestEndlessMRA(t *testing.T) {
	w, a, p := newWorldOfTwo(t, wiretest.Options{})
	x := w.attacker()
	w.lose = func(_ int, s *sent) bool { return s.from == a.addr }
	id := a.connect(p)
	for n := 0; len(a.log) == 0; n++ {
		testutil.MustTrue(t, n < 2000, "no end after %d MRAs", n)
		q := message{attr: attrMRA, remote: id.(*ID).conn.local, local: 9}
		q.wait = 31
		x.send(p.addr, a.addr, &q)
		w.run(time.Second)
	}
	testutil.Equal(t, a.log[0].Type, verbs.EventUnreachable, "event")
	a.end(id)
	a.empty("active")
}

// TestLongTimes: a request cannot make its connection wait for hours: not for RTU, and not for an
// acknowledgment.
func TestLongTimes(t *testing.T) {
	for _, n := range []uint8{0, 31} {
		w := newWorld(t, wiretest.Options{})
		p, x := w.host(2, Options{}), w.attacker()
		p.serving()
		q := x.request(x.addr, p.addr, 1)
		q.localWait, q.ackTimeout = n, n
		x.send(x.addr, p.addr, q)
		testutil.MustEqual(t, len(p.dev.queues), 1, "queue pairs")
		testutil.Equal(t, p.dev.queues[0].peer.AckTimeout, maxAckTimeout, "ACK timeout")
		w.run(20 * time.Second)
		testutil.Equal(t, p.count(verbs.EventUnreachable), 1, "events")
	}
}

// FuzzReceive sends arbitrary messages, and good ones with bytes changed, to machines with a
// connection in each state.
func FuzzReceive(f *testing.F) {
	for a := range golden {
		f.Add(goldenMAD(f, a), uint8(0), false)
		f.Add(goldenMAD(f, a), uint8(3), true)
	}
	f.Fuzz(func(t *testing.T, mad []byte, stage uint8, own bool) {
		if len(mad) > 4096 {
			return
		}
		mad = mad[:len(mad)&^3]
		w := newWorld(t, wiretest.Options{})
		defer w.close()
		a, p := w.host(1, Options{}), w.host(2, Options{})
		x := w.attacker()
		l := p.serving()
		n := int(stage % 6)
		w.lose = func(i int, s *sent) bool { return i >= n && s.from != x.addr }
		id := a.connect(p)
		w.settle()
		if stage&8 != 0 {
			testutil.Must(t, id.Disconnect())
		}
		w.lose = nil
		for _, h := range []*machine{a, p} {
			for _, c := range h.m.conns {
				b := append([]byte(nil), mad...)
				if own && len(b) == madSize { // the right IDs, so that something happens
					binary.BigEndian.PutUint32(b[madHeader:], c.remote)
					binary.BigEndian.PutUint32(b[madHeader+4:], c.local)
				}
				x.raw(c.peer.Path.Remote, h.addr, qkey, b)
			}
		}
		w.run(ever)
		for _, h := range []*machine{a, p} {
			for _, c := range h.m.conns {
				stays := c.state == established || c.state == dreqReceived || c.state == reqReceived
				testutil.True(t, c.id != nil && stays, "left in state %d", c.state)
			}
		}
		w.atMostThreeReplies("fuzz")
		testutil.Must(t, l.Destroy())
	})
}
