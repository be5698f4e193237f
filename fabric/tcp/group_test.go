package tcp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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
