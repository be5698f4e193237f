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
		testutil.True(t, lateOn(h.channels[0]) <= 0, "reactor %d still knows of late writes", i+1)
	}
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
