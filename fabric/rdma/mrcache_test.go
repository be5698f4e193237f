package rdma

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

// mrs returns the MR cache of the device of the last queue.
func (b *harness) mrs() *mrCache {
	var t *mrCache
	b.on(func() { t = b.h.Queue.(*queue).p.dev.mrs })
	return t
}

// registered asks for a chunk of the store until it is registered, or nothing is being registered.
func (b *harness) registered(chunk int) (ok bool) {
	b.t.Helper()
	seg := []mem.Segment{{
		B:      b.h.Region.Bytes()[chunk*mem.ChunkSize:][:4096],
		Region: b.h.Region.ID(),
	}}
	table := b.mrs()
	b.on(func() { b.h.Queue.CanSendFrom(seg) }) // asks
	testutil.Until(b.t, "the memory is registered or is not", func() bool {
		table.mu.Lock()
		busy := table.working
		table.mu.Unlock()
		b.on(func() { ok = b.h.Queue.CanSendFrom(seg) })
		return ok || !busy
	})
	return ok
}

func (b *harness) zeroCopyRead(q *hostQueue, chunk int) {
	b.t.Helper()
	const n = 64 << 10
	copy(b.h.Region.Bytes()[chunk*mem.ChunkSize:], pattern(n, chunk))
	if st := q.do(q.keyed(command(opZeroCopyRead, 1, uint64(chunk*mem.ChunkSize), n), 0, n),
		nil); !st.OK() {
		b.t.Fatal(st)
	}
	testutil.True(b.t, bytes.Equal(q.buf[:n], pattern(n, chunk)), "other data came back")
}

// TestRegisteredByChunk: a chunk is registered when it is first asked for and stays so. Its pages
// cannot be given back, while others can. The region takes the registration with it.
func TestRegisteredByChunk(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(32))
		before := b.f.Live("target").MRs
		b.zeroCopyRead(q, 1)
		testutil.MustTrue(t, b.registered(1), "not registered:\n%s", b.log)
		for range 3 {
			b.zeroCopyRead(q, 1)
		}
		if n := b.f.Live("target").MRs; n != before+1 {
			t.Errorf("%d memory regions for one chunk", n-before)
		}
		testutil.Is(t, b.h.Region.Discard(mem.ChunkSize, mem.ChunkSize), mem.ErrPinned,
			"the pages of a registered chunk are given back")
		testutil.Check(t, b.h.Region.Discard(0, mem.ChunkSize))
		b.on(func() {
			across := mem.Segment{
				B:      b.h.Region.Bytes()[mem.ChunkSize-1 : mem.ChunkSize+1],
				Region: b.h.Region.ID(),
			}
			stranger := mem.Segment{B: make([]byte, 1), Region: 1 << 30}
			if q := b.h.Queue; q.CanSendFrom([]mem.Segment{across}) ||
				q.CanSendFrom([]mem.Segment{stranger}) || !q.CanSendFrom(nil) {
				t.Error("reaches what it cannot")
			}
		})
		testutil.Check(t, b.h.Region.Unmap())
		if n := b.f.Live("target").MRs; n != before {
			t.Errorf("%d memory regions outlive the memory", n-before)
		}
	})
}

// TestRegistrationLimit: memory that cannot be registered is copied, until it can be. That is
// logged once.
func TestRegistrationLimit(t *testing.T) {
	for name, limit := range map[string]func(b *harness){
		"limit": func(b *harness) { b.mrs().limit = 1 },
		"memlock": func(b *harness) {
			b.f.FailCalls("target", verbstest.CallRegMR, 1, -1, unix.ENOMEM)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, harnessOptions{})
			other := testutil.Value(mem.Map("test store", mem.ChunkSize))(t)
			q := b.host.connect(b.addr(), ioParam(32))
			limit(b)
			testutil.True(t, b.registered(0) && !b.registered(1), "the limit does not hold")
			seg := []mem.Segment{{B: other.Bytes(), Region: other.ID()}}
			b.on(func() { b.h.Queue.CanSendFrom(seg) })
			testutil.Until(b.t, "the other region is asked for", func() bool {
				table := b.mrs()
				table.mu.Lock()
				defer table.mu.Unlock()
				return !table.working
			})
			for range 3 {
				b.zeroCopyRead(q, 0)
				b.zeroCopyRead(q, 1)
			}
			n := strings.Count(b.log.String(), "see the memlock limit")
			testutil.True(t, n == 1, "said %d times:\n%s", n, b.log)
			b.f.FailCalls("target", verbstest.CallRegMR, 0, 0, nil)
			testutil.Check(t, other.Unmap())
		})
	}
}

// TestRegistrationLimitIsHalf: half of the limits of device and system is left to others.
// Memory that is not locked has no limit of the system.
func TestRegistrationLimitIsHalf(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(32))
	attr := b.mrs().d.attr
	attr.MaxMR = 1000
	n := mrLimit(&attr)
	testutil.True(t, n <= 500, "%d of 1000 memory regions", n)
	attr.Unlocked = true
	testutil.Equal(t, mrLimit(&attr), 500, "memory regions that are not locked")
}

// TestRegisteredAfterRemoval: a device that was removed pins no memory.
func TestRegisteredAfterRemoval(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(32))
	b.zeroCopyRead(q, 0)
	testutil.MustTrue(t, b.registered(0), "not registered")
	testutil.MustTrue(t, b.f.RemoveDevice("target", "roce0"), "no such device")
	b.idle()
	testutil.Until(b.t, "the memory is free",
		func() bool { return b.h.Region.Discard(0, mem.ChunkSize) == nil })
}

// TestZeroCopyDisconnect: every zero copy is ended once, in any kind of disconnect.
func TestZeroCopyDisconnect(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		o.cfg.DrainTimeout = 50 * time.Millisecond // soft iWARP forgets late completions
		b := newHarness(t, o)
		for round := range 20 {
			q := b.host.connect(b.addr(), ioParam(32))
			if round == 0 {
				b.zeroCopyRead(q, 0)
				b.registered(0)
			}
			for i := range 16 {
				sqe := q.keyed(command(opZeroCopyRead, uint16(i), 0, 1<<20), i<<10, 1<<20)
				q.send(&sqe, nil)
			}
			if round%2 == 1 {
				b.on(func() { b.h.Queue.Disconnect(errors.New("test")) })
			}
			q.disconnect()
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q.free()
		}
	})
}
