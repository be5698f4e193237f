package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
