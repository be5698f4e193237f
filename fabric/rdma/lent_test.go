package rdma

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// table is the lent memory of the device that the bench's last queue is on.
func (b *bench) table() *lentTable {
	var t *lentTable
	b.on(func() { t = b.h.queue.(*queue).p.dev.lent })
	return t
}

// reachable asks for a chunk of the store until it is registered, or nothing is being registered
// any more.
func (b *bench) reachable(chunk int) (ok bool) {
	b.t.Helper()
	seg := []mem.Segment{{
		B:      b.h.store.Bytes()[chunk*mem.ChunkSize:][:4096],
		Region: b.h.store.ID(),
	}}
	table := b.table()
	b.on(func() { b.h.queue.CanSendFrom(seg) }) // asks
	b.eventually("the memory is registered or is not", func() bool {
		table.mu.Lock()
		busy := table.working
		table.mu.Unlock()
		b.on(func() { ok = b.h.queue.CanSendFrom(seg) })
		return ok || !busy
	})
	return ok
}

func (b *bench) lentRead(q *hostQueue, chunk int) {
	b.t.Helper()
	const n = 64 << 10
	copy(b.h.store.Bytes()[chunk*mem.ChunkSize:], pattern(n, chunk))
	if st := q.do(q.keyed(command(opLentRead, 1, uint64(chunk*mem.ChunkSize), n), 0, n),
		nil); !st.OK() {
		b.t.Fatal(st)
	}
	if !bytes.Equal(q.buf[:n], pattern(n, chunk)) {
		b.t.Error("other data came back")
	}
}

// TestFilesAreNotRegistered: memory of files is not reached, which is said once; other memory is.
func TestFilesAreNotRegistered(t *testing.T) {
	b := newBench(t, benchOptions{})
	b.host.connect(b.addr(), ioParam(32))
	seg := mem.Segment{B: b.h.store.Bytes()[:4096], Region: b.h.store.ID(), File: true}
	for range 3 {
		b.on(func() {
			if b.h.queue.CanSendFrom([]mem.Segment{seg}) ||
				b.h.queue.CanReceiveInto([]mem.Segment{seg}) {
				t.Error("the memory of a file is reached")
			}
		})
	}
	if n := strings.Count(b.log(), "what is read of mapped files is copied"); n != 1 {
		t.Errorf("said %d times:\n%s", n, b.log())
	}
	if !b.reachable(0) {
		t.Error("other memory is not registered any more")
	}
}

// TestLentByChunk: a chunk is registered when it is first asked for and stays so; its pages cannot
// be given back, others can. The region takes the registration with it.
func TestLentByChunk(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
		q := b.host.connect(b.addr(), ioParam(32))
		before := b.f.Live("target").MRs
		b.lentRead(q, 1)
		if !b.reachable(1) {
			t.Fatalf("not registered:\n%s", b.log())
		}
		for range 3 {
			b.lentRead(q, 1)
		}
		if n := b.f.Live("target").MRs; n != before+1 {
			t.Errorf("%d memory regions for one chunk", n-before)
		}
		if err := b.h.store.Discard(mem.ChunkSize, mem.ChunkSize); !errors.Is(err, mem.ErrPinned) {
			t.Errorf("the pages of a registered chunk are given back: %v", err)
		}
		if err := b.h.store.Discard(0, mem.ChunkSize); err != nil {
			t.Error(err)
		}
		b.on(func() {
			across := mem.Segment{
				B:      b.h.store.Bytes()[mem.ChunkSize-1 : mem.ChunkSize+1],
				Region: b.h.store.ID(),
			}
			stranger := mem.Segment{B: make([]byte, 1), Region: 1 << 30}
			if q := b.h.queue; q.CanSendFrom([]mem.Segment{across}) ||
				q.CanSendFrom([]mem.Segment{stranger}) || !q.CanSendFrom(nil) {
				t.Error("reaches what it cannot")
			}
		})
		if err := b.h.store.Unmap(); err != nil {
			t.Error(err)
		}
		if n := b.f.Live("target").MRs; n != before {
			t.Errorf("%d memory regions outlive the memory", n-before)
		}
	})
}

// TestLentLimit: what cannot be registered is copied, as long as that lasts, and said once.
func TestLentLimit(t *testing.T) {
	for name, limit := range map[string]func(b *bench){
		"limit": func(b *bench) { b.table().most = 1 },
		"memlock": func(b *bench) {
			b.f.FailCalls("target", verbstest.CallRegMR, 1, -1,
				unix.ENOMEM)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchOptions{})
			other, err := mem.Map("test store", mem.ChunkSize)
			if err != nil {
				t.Fatal(err)
			}
			q := b.host.connect(b.addr(), ioParam(32))
			limit(b)
			if !b.reachable(0) || b.reachable(1) {
				t.Error("the limit does not hold")
			}
			seg := []mem.Segment{{B: other.Bytes(), Region: other.ID()}}
			b.on(func() { b.h.queue.CanSendFrom(seg) })
			b.eventually("the other region is asked for", func() bool {
				table := b.table()
				table.mu.Lock()
				defer table.mu.Unlock()
				return !table.working
			})
			for range 3 {
				b.lentRead(q, 0)
				b.lentRead(q, 1)
			}
			if n := strings.Count(b.log(), "see the memlock limit"); n != 1 {
				t.Errorf("said %d times:\n%s", n, b.log())
			}
			b.f.FailCalls("target", verbstest.CallRegMR, 0, 0, nil)
			if err := other.Unmap(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLentLimitIsShared: half of what a device and the system allow is left to others.
func TestLentLimitIsShared(t *testing.T) {
	b := newBench(t, benchOptions{})
	b.host.connect(b.addr(), ioParam(32))
	attr := b.table().d.attr
	attr.MaxMR = 1000
	if n := lentLimit(&attr); n > 500 {
		t.Errorf("%d of 1000 memory regions", n)
	}
}

// TestLentAfterRemoval: a device that is gone keeps no memory.
func TestLentAfterRemoval(t *testing.T) {
	b := newBench(t, benchOptions{})
	q := b.host.connect(b.addr(), ioParam(32))
	b.lentRead(q, 0)
	if !b.reachable(0) {
		t.Fatal("not registered")
	}
	if !b.f.RemoveDevice("target", "roce0") {
		t.Fatal("no such device")
	}
	b.idle()
	b.eventually("the memory is free",
		func() bool { return b.h.store.Discard(0, mem.ChunkSize) == nil })
}

// TestLentDisconnect: whatever a host leaves behind, every loan comes back once.
func TestLentDisconnect(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
		for round := range 20 {
			q := b.host.connect(b.addr(), ioParam(32))
			if round == 0 {
				b.lentRead(q, 0)
				b.reachable(0)
			}
			for i := range 16 {
				sqe := q.keyed(command(opLentRead, uint16(i), 0, 1<<20), i<<10, 1<<20)
				q.send(&sqe, nil)
			}
			if round%2 == 1 {
				b.on(func() { b.h.queue.Disconnect(errors.New("test")) })
			}
			q.disconnect()
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q.free()
		}
		b.h.mu.Lock()
		defer b.h.mu.Unlock()
		for r, phase := range b.h.phase {
			if r.ZeroCopy || phase != "" && phase != "release" && phase != "complete" &&
				phase != "abandon" {
				t.Errorf("a request is left %q, lent %v", phase, r.ZeroCopy)
			}
		}
	})
}
