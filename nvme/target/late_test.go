package target

import (
	"bytes"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// twoPaths is a host with a controller at each of two ports. Their queues are on different
// reactors. The storage completes IOs when the test tells it to.
type twoPaths struct {
	*harness
	dev  *backendtest.Faulty
	a, b *host
}

func newTwoPaths(t *testing.T, kato uint32) *twoPaths {
	t.Helper()
	sub, dev := faultySubsystem(t)
	p := &twoPaths{harness: newHarness(t, 3, sub), dev: dev}
	at := info(nvme.TransportTCP)
	p.a = p.connectHostInfo(1, at, func(a *connectArgs) { a.kato = kato })
	at.PortID = 2
	p.b = p.connectHostInfo(0, at)
	p.b.connectIO(2)
	return p
}

// lateOn is how much late writes have on a channel.
func lateOn(ch *channel) int {
	left := ch.State().Busy
	return left.Awaited + left.Late + left.Held
}

func filled(b byte) []byte { return bytes.Repeat([]byte{b}, 512) }

func write(slba uint64, b byte) *fabrictest.Command {
	return rw(nvme.NVMWrite, 1, slba, 1, filled(b))
}

// retries sends other data to blocks 0 to 2 on path B while the device has the writes of path A to
// 0 and 1, and wants it to wait until these are back, and nothing else to wait.
func (p *twoPaths) retries(what string) {
	p.t.Helper()
	q := p.b.io[0]
	var waiting []*fabrictest.Command
	for slba := range uint64(2) {
		waiting = append(waiting, p.send(q, write(slba, 'b')))
	}
	zeroes := p.send(q, rw(nvme.NVMWriteZeroes, 1, 1, 1, nil))
	waiting = append(waiting, zeroes)
	p.w.Settle()
	p.ok(q, write(2, 'b'))
	p.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	p.ok(q, command(nvme.NVMFlush, 1, nil))
	other := p.numbered(5, 1)
	p.ok(other.io[0], write(0, 'o'))
	claims := p.connectHost(1, func(a *connectArgs) { a.host = testHost + "-other" })
	p.ok(claims.io[0], write(0, 'o'))
	p.w.Settle()
	for _, c := range waiting {
		testutil.True(p.t, !c.Done, "%s: a retry has overtaken the first write", what)
	}
	p.dev.Release()
	for _, c := range waiting {
		p.until(what+": the retry completes", func() bool { return c.Done })
		testutil.Equal(p.t, c.CQE.Status(), nvme.Success, "%s", what)
	}
	want := append(append(filled('b'), filled(0)...), filled('b')...)
	got := p.ok(q, rw(nvme.NVMRead, 1, 0, 3, make([]byte, 3*512))).Data
	if !bytes.Equal(got, want) {
		p.t.Errorf("%s: blocks begin with %q", what, []byte{got[0], got[512], got[1024]})
	}
	p.ok(q, write(0, 'c'))
	p.w.Settle()
	for i, h := range p.raw {
		for _, ch := range h.channels {
			if ch != nil && lateOn(ch) > 0 {
				p.t.Errorf("%s: reactor %d has %+v", what, i, ch.State().Busy)
			}
		}
	}
}

// hold makes the device hold the writes of path A to blocks 0 and 1, and pass later IOs.
func (p *twoPaths) hold() {
	p.t.Helper()
	held := 0
	p.dev.Hold(func(io *backend.IO) bool {
		if io.Op == backend.OpWrite {
			held++
		}
		return io.Op == backend.OpWrite && held <= 2
	})
	for slba := range uint64(2) {
		p.send(p.a.io[0], write(slba, 'a'))
	}
	p.until("the device has the writes", func() bool { return p.dev.Held() == 2 })
}

// TestLateWriteOfEndedQueue: the connection of path A ends while the storage has its writes.
func TestLateWriteOfEndedQueue(t *testing.T) {
	p := newTwoPaths(t, 0)
	p.hold()
	p.a.hangUp()
	p.w.Settle()
	p.retries("ended")
}

// TestLateWriteWithoutChannel: a reactor that opens its channel after the end of path A knows.
func TestLateWriteWithoutChannel(t *testing.T) {
	p := newTwoPaths(t, 0)
	p.hold()
	p.a.hangUp()
	p.w.Settle()
	testutil.MustTrue(t, p.raw[2].channels == nil, "the reactor has a channel")
	p.retries("new channel")
}

// TestLateWriteOfStalledPath: path A is cut, or its host stands still, and nobody knows; the other
// path waits all the same. When the keep alive timer of A expires, nothing changes.
func TestLateWriteOfStalledPath(t *testing.T) {
	for name, expires := range map[string]bool{"stalled": false, "expired": true} {
		p := newTwoPaths(t, 4000)
		p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		p.hold()
		p.w.Advance(2 * time.Duration(timeoutInterval))
		if s := p.raw[1].sessions.At(0); expires {
			p.w.Advance(6 * time.Second)
			testutil.True(t, s.stopped, "the queue goes on")
			if len(p.target.Controllers()) != 2 { // it lasts until its writes are back
				t.Errorf("%+v", p.target.Controllers())
			}
		}
		p.retries(name)
	}
}

// TestLateWriteOfOnlyPath: the only path of a host is cut, and the host connects another one before
// anybody has noticed.
func TestLateWriteOfOnlyPath(t *testing.T) {
	sub, dev := faultySubsystem(t)
	p := &twoPaths{harness: newHarness(t, 3, sub), dev: dev}
	p.a = p.connectHost(1)
	p.hold()
	p.w.Advance(2 * time.Duration(timeoutInterval))
	at := info(nvme.TransportTCP)
	at.PortID = 2
	p.b = p.connectHostInfo(0, at)
	p.b.connectIO(2)
	p.retries("another path")
}

// TestManyLateWrites: commands that wait for late writes, however many, are not looked at again
// before these are back. A queue has one announcement for all its late writes.
func TestManyLateWrites(t *testing.T) {
	p := newTwoPaths(t, 0)
	p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	p.dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite && io.Off < 8*512 })
	for slba := range uint64(8) { // they become slow one after the other
		p.send(p.a.io[0], write(slba, 'a'))
		p.until("the device has it", func() bool { return p.dev.Held() == int(slba)+1 })
		p.w.Advance(2 * time.Duration(timeoutInterval))
	}
	p.w.Advance(2 * time.Duration(timeoutInterval))
	var waiting []*fabrictest.Command
	for i := range uint64(100) {
		waiting = append(waiting, p.send(p.b.io[0], write(i%8, 'b')))
	}
	p.w.Settle()
	want := dispatch.State{Open: true}
	want.Busy.Held, want.Busy.Late = 100, 1
	testutil.Equal(t, p.raw[2].channels[0].State(), want, "the channel")
	p.ok(p.b.io[0], write(8, 'b'))
	testutil.True(t, p.ok(p.b.admin, abortCommand(1, waiting[99].SQE.CID())).CQE.DW0() == 0,
		"a write that waits is not aborted")
	p.dev.Release()
	for i, c := range waiting {
		p.until("a write completes", func() bool { return c.Done })
		st := c.CQE.Status()
		testutil.True(t, st.OK() == (i < 99), "write %d: %v", i, st)
	}
	for slba := range uint64(9) {
		got := p.ok(p.b.io[0], rw(nvme.NVMRead, 1, slba, 1, make([]byte, 512)))
		testutil.True(t, got.Data[0] == 'b', "block %d begins with %q", slba, got.Data[0])
	}
	for i, h := range p.raw[1:] {
		if lateOn(h.channels[0]) > 0 {
			t.Errorf("reactor %d still knows of late writes", i+1)
		}
	}
}

// TestBlockedWritesOfEndedQueue: writes that wait for late ones end with their own queue, and no
// reactor waits for them.
func TestBlockedWritesOfEndedQueue(t *testing.T) {
	p := newTwoPaths(t, 0)
	p.hold()
	p.a.hangUp()
	p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	p.send(p.b.io[0], write(0, 'b'))
	p.send(p.b.io[0], dsm(1, true, [2]uint64{0, 1}, [2]uint64{5, 1}))
	p.w.Settle()
	testutil.Equal(t, p.raw[2].channels[0].State().Busy.Held, 2, "IOs wait")
	p.b.hangUp()
	p.until("the queue ends", func() bool { return p.raw[2].sessionCount.Load() == 0 })
	p.dev.Release()
	h := p.connectHost(1)
	p.until("the write is back", func() bool { return p.target.Sessions() == 2 })
	got := p.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data
	testutil.True(t, got[0] == 'a', "block 0 begins with %q", got[0])
}

// TestLateWriteGivenUp: the device keeps a write longer than it may. Meanwhile the namespace is not
// ready, and commands accepted before still wait.
func TestLateWriteGivenUp(t *testing.T) {
	p := newTwoPaths(t, 0)
	p.hold()
	p.a.hangUp()
	p.w.Settle()
	c := p.send(p.b.io[0], write(0, 'b'))
	p.w.Advance(time.Duration(closeGrace) + 2*time.Duration(timeoutInterval))
	if l := p.target.Stats(); l[0].Ready || l[0].Orphans != 2 || c.Done {
		t.Errorf("ready %v, %d orphans, done %v", l[0].Ready, l[0].Orphans, c.Done)
	}
	p.dev.Release()
	p.until("the retry completes", func() bool { return c.Done })
	got := p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data
	testutil.True(t, got[0] == 'b', "block 0 begins with %q", got[0])
}

// TestNothingAfterKeepAlive: after the keep alive timer of a path has expired, new commands of the
// path, and its commands that wait for the device, are not carried out.
func TestNothingAfterKeepAlive(t *testing.T) {
	p := newTwoPaths(t, 4000)
	p.ok(p.a.io[0], write(0, 'x'))
	p.dev.Full(true)
	waits := p.send(p.a.io[0], write(0, 'a'))
	p.w.Step()
	s := p.raw[1].sessions.At(0)
	s.stop()
	p.dev.Full(false)
	p.until("the write is aborted", func() bool { return waits.Done })
	testutil.Equal(t, waits.CQE.Status(), nvme.AbortRequested, "a write that waits for the device")
	p.status(p.a.io[0], write(0, 'a'), nvme.CommandSequenceError)
	got := p.ok(p.b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data
	testutil.True(t, got[0] == 'x', "block 0 begins with %q", got[0])
}
