package tcp

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// actives returns the queues that the next poll receives from.
func (h *manual) actives() (list []*queue) {
	for q := range h.g.active.All() {
		list = append(list, q)
	}
	return list
}

// Of many connections, a poll receives only from connections with input. Each of them is found
// within a few polls, or when the reactor reports that the set is ready.
func TestManyConnections(t *testing.T) {
	h := newManual(t, options{})
	var peers []int
	for range 40 {
		h.open()
		peers = append(peers, h.peer)
	}
	if n := len(h.actives()); n > 1 {
		t.Errorf("%d connections are polled without having said anything", n)
	}
	r := pdu.ICReq(&pdu.Params{}, 1)
	say := func(peer int) {
		if n, e := sys.Send(peer, r[:], 0); n != len(r) || e != 0 {
			t.Fatal(n, e)
		}
	}
	answered := func(peer int) bool {
		var b [pdu.ICSize]byte
		n, _ := sys.Recv(peer, b[:], 0)
		return n == len(b)
	}
	say(peers[17])
	n := 1
	for h.g.Poll(64); !answered(peers[17]); h.g.Poll(64) {
		n++
		testutil.MustTrue(t, n <= pollsPerEvents, "not answered after %d polls", n)
	}
	for range 20 {
		h.g.Poll(64)
	}
	say(peers[5])
	testutil.True(t, h.g.Arm(), "the group does not let the reactor sleep")
	h.loop.fns[h.g.epfd](unix.EPOLLIN)
	h.g.Poll(64)
	testutil.True(t, answered(peers[5]), "not answered after the wake-up")
	h.close(peers...)
}

// A connection that is alone in having input stays active until it has had none for a while. If
// several connections have input in turns, none stays active: each poll checks the set and finds
// the next one.
func TestActive(t *testing.T) {
	h := newManual(t, options{})
	const connections = 3
	var peers [connections]int
	var hosts [connections]*client
	for i := range peers {
		hosts[i] = h.connect(pdu.Params{}, 8)
		peers[i] = h.peer
	}
	h.loop.now += 2 * recent
	read := func(i int) {
		t.Helper()
		h.peer = peers[i]
		b := hosts[i].request(nvme.NVMRead, 1, 0, 512)
		if n, e := sys.Send(h.peer, b, 0); n != len(b) || e != 0 {
			t.Fatal(n, e)
		}
	}
	ask := func(when string, most int) {
		t.Helper()
		for range most {
			h.g.Poll(64)
		}
		if want := pdu.DataSize + 512 + pdu.CapsuleRespSize; len(h.recv()) != want {
			t.Errorf("%s: no answer after %d polls", when, most)
		}
	}
	read(0)
	ask("alone, parked", pollsPerEvents)
	h.loop.now += 2 * recent // a moment ago others had input
	read(0)
	ask("alone, again", pollsPerEvents)
	if a := h.actives(); len(a) != 1 || a[0] != h.g.queues.At(0) {
		t.Fatalf("%d connections are active", len(a))
	}
	for range 3 * pollsPerEvents {
		read(0)
		ask("alone", 1)
	}
	read(1)
	ask("another one", pollsPerEvents)
	for i := range 3 * connections {
		read(i % connections)
		ask("in turns", 1)
		a := h.actives()
		testutil.True(t, len(a) == 0, "%d connections are active", len(a))
	}
	h.loop.now += 2 * recent
	read(2)
	ask("alone in the end", pollsPerEvents)
	testutil.Equal(t, len(h.actives()), 1, "a connection alone is not active")
	h.loop.now += 2 * recent
	h.g.Poll(64)
	testutil.True(t, len(h.actives()) == 0, "a connection without input stays active")
	h.close(peers[:]...)
}

// The end of a stream is noticed even if it comes in one event with the last data.
func TestEndWithData(t *testing.T) {
	for _, inTurns := range []bool{false, true} {
		h, c := joined(t, options{}, pdu.Params{}, 8)
		if inTurns {
			h.g.turnsUntil = h.loop.now + recent
		} else {
			h.loop.now += 2 * recent
		}
		h.turn()
		testutil.MustTrue(t, h.g.Arm(), "the group does not let the reactor sleep")
		_, e := sys.Send(h.peer, c.request(nvme.NVMFlush, 1, 0, 0), 0)
		testutil.MustTrue(t, e == 0, "%v", e)
		_ = unix.Close(h.peer)
		h.peer = -1
		h.loop.fns[h.g.epfd](unix.EPOLLIN)
		for h.g.Poll(64) > 0 {
		}
		testutil.Equal(t, h.g.queues.Len(), 0, "connections that are left, in turns %v", inTurns)
		h.close()
	}
}

// An admin queue does not count as load, nor does a dead connection.
func TestLoad(t *testing.T) {
	h := newManual(t, options{})
	defer h.close()
	load := func(what string, want int) {
		t.Helper()
		testutil.Equal(t, h.g.Load(), want, "%s: load", what)
	}
	load("no connection", 0)
	c := &client{tb: t}
	for qid, want := range []int{0, 1} {
		h.open()
		load("accepted", 1)
		r := pdu.ICReq(&c.P, 1)
		h.send(r[:])
		load("before Connect", 1)
		h.send(c.connectPDU(uint16(qid), 4, 0))
		load("after Connect", want)
		h.hangUp()
		load("closed", 0)
	}
}

// TestManyQueues: with any number of connections in a group, deadlines and a stop handle few of
// them in a turn.
func TestManyQueues(t *testing.T) {
	for _, n := range []int{10, 10_000} {
		h := newManual(t, options{})
		queues := make([]queue, n)
		for i := range queues {
			q := &queues[i]
			q.g, q.state = h.g, queueDead
			h.g.queues.Add(q, &q.place)
		}
		turns := func() (n int) {
			for n = 1; len(h.loop.posts) > 0; n++ {
				posts := h.loop.posts
				h.loop.posts = nil
				for _, fn := range posts {
					fn()
				}
			}
			return n
		}
		for what, look := range map[string]func(){
			"deadlines": h.g.checkDeadlines, "stop": func() { h.g.Shutdown(func() {}) },
		} {
			look()
			if got := turns(); got < n/100 || n < 100 && got > 2 {
				t.Errorf("%s of %d connections: %d turns", what, n, got)
			}
		}
		for i := range queues {
			h.g.queues.Remove(&queues[i].place)
		}
		h.close()
	}
}

// TestManyCommands: a poll begins a bounded number of the commands that a queue has received. The
// rest comes before other input, unless the queue ends.
func TestManyCommands(t *testing.T) {
	const n, most = 1000, pollBytes / commandCost
	for _, ends := range []bool{false, true} {
		h, c := joined(t, options{
			hold: true, arena: 16 << 20, cfg: Config{MaxDepth: MaxQueueDepth},
		}, pdu.Params{}, MaxQueueDepth)
		var all []byte
		for i := range n {
			all = append(all, c.held(nvme.NVMRead, uint16(i), 0, 4096)...)
		}
		all = append(all, c.held(nvme.NVMRead, n, 0, 4096)[:10]...)
		h.put(h.peer, all)
		h.g.turnsUntil = h.loop.now + recent
		begun := h.d.Executed.Load()
		for last, end := begun, begun+n; last < end && !(ends && h.g.reader != nil); {
			testutil.MustTrue(t, !h.g.Arm(), "%d commands are left", end-last)
			h.g.Poll(64)
			now := h.d.Executed.Load()
			testutil.MustTrue(t, now-last <= most, "%d commands in a poll", now-last)
			last = now
		}
		if ends {
			h.hangUp()
			testutil.True(t, h.g.reader == nil, "input is left of a queue that has ended")
		} else {
			h.g.Poll(64)
			testutil.True(t, h.queue().acknowledged, "the part of a PDU is not acknowledged")
		}
		peer := h.peer
		begun = h.d.Executed.Load()
		c = h.connect(pdu.Params{}, 4)
		h.send(c.held(nvme.NVMRead, 0, 0, 4096))
		testutil.Equal(t, h.d.Executed.Load()-begun, 2, "commands of another queue")
		h.close(h.peer, peer)
	}
}

// put makes input of a connection known to the group.
func (h *manual) put(peer int, b []byte) {
	sent, e := sys.Send(peer, b, 0)
	testutil.MustTrue(h.tb, e == 0 && sent == len(b), "%d of %d bytes: %v", sent, len(b), e)
	h.g.pollEvents()
}

// TestSmallData: a poll takes a bounded number of PDUs with data.
func TestSmallData(t *testing.T) {
	const n, most = 16 << 10, pollBytes / dataCost
	h, c := joined(t, options{}, pdu.Params{}, 4)
	h.send(c.request(nvme.NVMWrite, 0, 0, n))
	ttag := (*pdu.Data)(h.recv()).TTAG()
	all := c.H2CData(0, 0, ttag, 0, make([]byte, 108))
	all[3], all[pdu.OffDATAL] = pdu.DataSize+104, 4 // padding: more than a header is received
	for off := 4; off < n; off += 4 {
		all = append(all, c.H2CData(0, 0, ttag, off, make([]byte, 4))...)
	}
	h.put(h.peer, all)
	for q := h.queue(); h.d.Written.Load() == 0; {
		before := q.pdus
		h.g.Poll(64)
		testutil.MustTrue(t, q.state == queueLive && q.pdus-before <= most, "%d PDUs in a poll",
			q.pdus-before)
	}
	h.close()
}

// TestManyFaults: a poll ends a few connections because of bad PDUs, or bad records of TLS, and
// discards the later input of a bounded number of them.
func TestManyFaults(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		h := newManual(t, options{})
		var peers []int
		for i := range 60 {
			h.open()
			peers = append(peers, h.peer)
			if encrypted {
				h.g.queues.At(i).tls = secured(t, h.g)
			}
		}
		put := func(b []byte) {
			for _, fd := range peers {
				h.put(fd, b)
			}
			h.g.Poll(64)
		}
		put([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0})
		n := 0
		for q := range h.g.queues.All() {
			if q.state > queueLive {
				n++
			}
		}
		testutil.True(t, n > 0 && n <= pollBytes/endCost, "%d queues end in a poll", n)
		h.turn()
		put([]byte{1})
		n = len(peers) - len(h.actives())
		testutil.True(t, n > 0 && n <= pollBytes/2/receiveCost+1, "%d queues in a poll", n)
		h.close(peers...)
	}
}

// TestManyConnect: a poll begins two Connect commands at most, of any number of queues.
func TestManyConnect(t *testing.T) {
	h, c := joined(t, options{}, pdu.Params{}, 4)
	peers := []int{h.peer}
	for range 40 {
		h.open()
		r := pdu.ICReq(&c.P, 1)
		h.send(r[:])
		peers = append(peers, h.peer)
	}
	for _, fd := range peers[1:] {
		h.put(fd, c.connectPDU(1, 4, 0))
	}
	for begun := h.d.Executed.Load(); int(begun) < len(peers); {
		testutil.MustTrue(t, !h.g.Arm(), "%d of %d commands", begun, len(peers))
		h.g.Poll(64)
		now := h.d.Executed.Load()
		testutil.MustTrue(t, now-begun <= pollBytes/connectCost, "%d commands in a poll", now-begun)
		begun = now
	}
	h.close(peers...)
}

// TestAdminTurn: other queues are read before an admin queue has had many turns of a poll.
func TestAdminTurn(t *testing.T) {
	const n = 1000
	h, c := joined(t, options{arena: 16 << 20}, pdu.Params{}, 4)
	other := h.peer
	h.open()
	r := pdu.ICReq(&c.P, 1)
	h.send(append(r[:], c.connectPDU(0, 128, 0)...))
	var all []byte
	for i := range n {
		all = append(all, c.request(nvme.NVMRead, uint16(i), 0, 40<<10)...)
	}
	begun := h.d.Executed.Load()
	h.put(h.peer, all)
	h.put(other, c.request(nvme.NVMFlush, 0, 0, 0))
	polls, answered := 0, 0
	for ; h.d.Executed.Load() < begun+n+1; polls++ {
		h.g.Poll(64)
		testutil.MustTrue(t, polls <= n, "%d commands", h.d.Executed.Load()-begun)
		for got := 1; got > 0; got, _ = sys.Recv(h.peer, h.in, 0) {
		}
		if got, _ := sys.Recv(other, h.in, 0); got > 0 {
			answered = polls
		}
	}
	testutil.True(t, answered > 0 && answered <= 40 && polls > 100, "answered in poll %d of %d",
		answered, polls)
	h.close(h.peer, other)
}

// busy serves TLS, and works on ClientHellos until goOn is closed. begun receives a value for each.
type busy struct {
	*target
	hello       []byte
	begun, goOn chan struct{}
}

func serveBusy(t *testing.T, connections int) *busy {
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
	key := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
	psks := testutil.Value(key.PSKs("nqn.2014-08.org.nvmexpress:uuid:"+
		"11111111-2222-3333-4444-555555555555", "nqn.2026-11.io.nvmf-target:disk0"))(t)
	b := &busy{begun: make(chan struct{}, 64), goOn: make(chan struct{})}
	b.target = serve(t, options{cfg: Config{
		Limits: admission.Limits{Connections: connections}, ICReqTimeout: time.Hour,
		TLS: func(uint16) fabric.TLSPolicy { return fabric.TLSAllowed },
		PSKs: func([]byte) []auth.TLSPSK {
			b.begun <- struct{}{}
			<-b.goOn
			return nil
		},
	}})
	handshake := testutil.Value(tls.NewClient(&psks[0]))(t)
	defer handshake.Free()
	var err error
	b.hello, _, err = handshake.Step(nil)
	testutil.Must(t, err)
	return b
}

// dialHello connects and sends a ClientHello.
func (b *busy) dialHello(t *testing.T) *client {
	c := b.dial(t)
	c.send(b.hello)
	return c
}

// TestTurnIsKept: a connection is not evicted while the target works on its ClientHello.
func TestTurnIsKept(t *testing.T) {
	tg := serveBusy(t, 64)
	tg.connect(t, pdu.Params{}, 4, 0) // makes the address that of an allowed host
	first := tg.dialHello(t)
	testutil.Receive(t, "the ClientHello has its turn", tg.begun)
	var idle []*client
	for range 20 { // there is room for 16
		idle = append(idle, tg.dial(t))
	}
	for _, c := range idle[:5] {
		c.end()
	}
	close(tg.goOn)
	alert := make([]byte, 7)
	if n, err := first.Read(alert); n != len(alert) || alert[0] != 21 {
		t.Errorf("no alert: % x, %v", alert[:n], err)
	}
}

// TestLeavesBeforeTurn: a connection ends when its peer leaves, also while its ClientHello waits.
// The target does no work for it, and it takes no place that a newer one needs.
func TestLeavesBeforeTurn(t *testing.T) {
	most := turns.MaxWorkers()
	tg := serveBusy(t, 16*(most+3)) // a sixteenth of them may be from one address
	for range most {
		tg.dialHello(t)
		testutil.Receive(t, "a ClientHello has its turn", tg.begun)
	}
	for range 3 {
		closed, reset := tg.dialHello(t), tg.dialHello(t)
		testutil.Until(t, "both are accepted", func() bool {
			return tg.t.Usage().Connections == most+2
		})
		testutil.Must(t, closed.Close())
		testutil.Must(t, reset.Conn.(*net.TCPConn).SetLinger(0))
		testutil.Must(t, reset.Close())
		testutil.Until(t, "both have ended", func() bool {
			return tg.t.Usage().Connections == most
		})
	}
	close(tg.goOn)
	testutil.Until(t, "no job is left", func() bool { return tg.t.Usage().Connections == 0 })
	testutil.Equal(t, len(tg.begun), 0, "ClientHellos of peers that had left, with a turn")
}
