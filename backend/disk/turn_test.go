package disk

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTurn: a call of Submit or Poll handles a bounded number of ops, even if many have come and
// many are granted at once, and all of them complete.
func TestTurn(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		const most = turnSteps/opSteps + 1
		d := newDisk(t, nUnits*minUnit, false, e)
		c := backendtest.NewClient(t, d, 4096)
		ch := c.Channel.(*channel)
		elsewhere := newActor()
		all := elsewhere.op(backend.OpWrite, 0, nUnits*minUnit)
		testutil.MustTrue(t, d.ranges.lock(all), "the range is not free")
		ios := make([]*backend.IO, maxOutstanding)
		for i := range ios {
			ios[i] = &backend.IO{Op: backend.OpWriteZeroes, Off: int64(i) * minUnit, Len: minUnit}
		}
		c.Lock()
		n := ch.Submit(ios)
		testutil.MustTrue(t, n == len(ios), "%d of %d were taken", n, len(ios))
		waiting := func() (n int) {
			ch.inbox.Take(&ch.arrived)
			for range ch.arrived.All() {
				n++
			}
			return n
		}
		buf := make([]*backend.IO, 16)
		done := 0
		poll := func(what string) (turns int) {
			for left := waiting(); left > 0; turns++ {
				testutil.MustTrue(t, !ch.Arm(), "%s: the reactor may sleep with %d ops to handle",
					what, left)
				done += ch.Poll(buf)
				now := waiting()
				testutil.MustTrue(t, left-now <= most, "%s: a poll handles %d ops", what, left-now)
				left = now
			}
			return turns
		}
		n = poll("begin")
		testutil.True(t, n >= len(ios)/most-1, "%d ops began in %d polls", len(ios), n)
		d.ranges.unlock(all)
		n = waiting()
		testutil.MustTrue(t, n == len(ios), "%d of %d ops are granted", n, len(ios))
		poll("granted")
		for done < len(ios) {
			n := ch.Poll(buf)
			if done += n; n == 0 && ch.Arm() {
				c.Sleep()
			}
		}
		d.ranges.mustBeFree(t)
		c.Close()
		mustClose(t, d)
	})
}

// TestCachedTransfers: the ring transfers a long IO through the page cache in pieces.
func TestCachedTransfers(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		if e.Name == Threads {
			t.Skip("other threads copy")
		}
		d := newDisk(t, 1<<20, false, e)
		var longest atomic.Int64
		d.inject = func(s step, res int32) int32 {
			if s == stepTransfer {
				longest.Store(max(longest.Load(), int64(res)))
			}
			return res
		}
		c := backendtest.NewClient(t, d, 1<<20)
		c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
		c.MustDo(c.Read(0, c.Memory(0, 1<<20)))
		n := longest.Load()
		testutil.True(t, n > 0 && n <= cachedMost, "%d bytes in a transfer", n)
		c.Close()
		mustClose(t, d)
	})
}

// TestWaitingTransfers: reads that have waited for their range are copied in turns of the reactor.
func TestWaitingTransfers(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		if e.Name == Threads {
			t.Skip("other threads copy")
		}
		d := newDisk(t, 1<<20, false, e)
		c := backendtest.NewClient(t, d, 1<<20)
		all := newActor().op(backend.OpWrite, 0, 1<<20)
		testutil.MustTrue(t, d.ranges.lock(all), "the range is not free")
		var ios []*backend.IO
		for range 32 {
			ios = append(ios, c.Read(0, c.Memory(0, 1<<20)))
		}
		c.Submit(ios...)
		copied, turn, ch := 0, new(backend.Turn), c.Channel.(*channel)
		d.inject = func(_ step, res int32) int32 { copied += int(res); return res }
		ch.turn = turn
		d.ranges.unlock(all)
		buf := make([]*backend.IO, len(ios))
		for turns, done := 1, 0; done < len(ios); turns++ {
			turn.Left = 2 * cachedMost
			done += ch.Poll(buf)
			testutil.MustTrue(t, copied <= turns*2*cachedMost, "%d bytes in %d turns", copied,
				turns)
		}
		c.Close()
		mustClose(t, d)
	})
}

// TestCancelWaiting: IOs are canceled while they wait for a unit, follow the gate, or wait for
// their channel to begin them. Each ends once, when its turn comes, and later IOs go on.
func TestCancelWaiting(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		for third := range 2 { // with 1 the gate is canceled, too
			cancelWaiting(t, e, func(i int) bool { return i%3 != third })
		}
	})
}

func cancelWaiting(t *testing.T, e Engine, canceled func(i int) bool) {
	d := newDisk(t, nUnits*minUnit, false, e)
	c := backendtest.NewClient(t, d, 4096)
	elsewhere := newActor()
	all := elsewhere.op(backend.OpWrite, 0, nUnits*minUnit)
	testutil.MustTrue(t, d.ranges.lock(all), "the range is not free")
	ios := []*backend.IO{{Op: backend.OpWriteZeroes, Len: nUnits * minUnit}} // the gate
	for i := range 8 * tellBatch {
		ios = append(ios, &backend.IO{
			Op: backend.OpWriteZeroes, Off: int64(i%4) * minUnit, Len: minUnit,
		})
	}
	c.Submit(ios...)
	ch := c.Channel.(*channel)
	var events [granted + 1]int
	for o := range ch.arrived.All() {
		events[o.event]++
	}
	followers := 0
	for range d.ranges.gate.Load().followers.All() {
		followers++
	}
	testutil.MustTrue(t, events[begun] > tellBatch && followers > tellBatch,
		"%d are to begin, %d follow", events[begun], followers)
	for i, io := range ios {
		if canceled(i) {
			ch.Cancel(io)
		}
	}
	d.ranges.unlock(all)
	_ = c.Do()
	for i, io := range ios {
		testutil.MustTrue(t, errors.Is(io.Err, backend.ErrAborted) == canceled(i), "IO %d: %v", i,
			io.Err)
	}
	d.ranges.mustBeFree(t)
	c.Close()
	mustClose(t, d)
}

// TestCloseChannel: a channel closes while a worker wakes the reactor, and the disk after that.
func TestCloseChannel(t *testing.T) {
	d := newDisk(t, 1<<20, false, Engine{Name: Threads})
	waking, woken := make(chan struct{}), make(chan struct{})
	c := testutil.Value(d.OpenChannel(backend.Reactor{Wake: func() {
		close(waking)
		<-woken
	}}))(t)
	io := &backend.IO{Op: backend.OpRead, Len: 512, Segs: []mem.Segment{{B: make([]byte, 512)}}}
	c.Submit([]*backend.IO{io})
	<-waking
	var done [1]*backend.IO
	testutil.MustTrue(t, c.Poll(done[:]) == 1 && io.Err == nil, "the read is not done: %v", io.Err)
	closed := make(chan error, 2)
	go func() { closed <- c.Close() }()
	testutil.Check(t, testutil.Receive(t, "the end of Close", closed))
	go func() { closed <- d.Close() }()
	testutil.Until(t, "the channel is closed", func() bool { return d.channels.Load() == 0 })
	testutil.True(t, len(closed) == 0, "the disk does not wait for the worker")
	close(woken)
	testutil.Check(t, testutil.Receive(t, "the end of Close", closed))
}
