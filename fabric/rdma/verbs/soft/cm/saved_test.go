package cm

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

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
