package tcp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Of many connections only those with something to do are touched, and one that has is found:
// within a few polls, or when the reactor says that the set is ready.
func TestManyConnections(t *testing.T) {
	h := newHand(t, options{})
	defer h.close()
	var peers []int
	for range 40 {
		h.open()
		peers = append(peers, h.peer)
	}
	for range 3 {
		h.g.Poll(64)
	}
	if n := len(h.g.hot); n > len(peers)/2 {
		t.Errorf("%d connections are polled without having said anything", n)
	}
	var r pdu.ICReq
	r.Set(&pdu.Params{}, 1)
	say := func(peer int) {
		if n, e := sys.Send(peer, r[:], 0); n != len(r) || e != 0 {
			t.Fatal(n, e)
		}
	}
	answered := func(peer int) bool {
		var b [pdu.ICRespSize]byte
		n, _ := sys.Recv(peer, b[:], 0)
		return n == len(b)
	}
	polls := func(peer int) int {
		say(peer)
		for n := 1; n <= 2*maxPause; n++ {
			if h.g.Poll(64); answered(peer) {
				return n
			}
		}
		t.Fatalf("not answered after %d polls", 2*maxPause)
		return 0
	}
	if n := polls(peers[17]); n > maxPause+1 {
		t.Errorf("answered after %d polls", n)
	}
	for range 20 {
		h.g.Poll(64)
	}
	say(peers[5])
	if !h.g.Arm() {
		t.Error("the group does not let the reactor sleep")
	}
	h.loop.fns[h.g.sockets.epfd](unix.EPOLLIN)
	if h.g.Poll(64); !answered(peers[5]) {
		t.Error("not answered after the wake-up")
	}
	for _, fd := range peers[:len(peers)-1] {
		_ = unix.Close(fd)
	}
}

// An admin queue does not count as load, a dead connection neither.
func TestLoad(t *testing.T) {
	h := newHand(t, options{})
	defer h.close()
	load := func(what string, want int) {
		t.Helper()
		if n := h.g.Load(); n != want {
			t.Errorf("%s: load %d, want %d", what, n, want)
		}
	}
	load("no connection", 0)
	c := &client{tb: t}
	for qid, want := range []int{0, 1} {
		h.open()
		load("accepted", 1)
		var r pdu.ICReq
		r.Set(&c.p, 1)
		h.send(r[:])
		load("before Connect", 1)
		h.send(c.connectPDU(uint16(qid), 4, 0))
		load("after Connect", want)
		h.hangUp()
		load("closed", 0)
	}
}
