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
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// ranges multiplies the timeout of discards and zeroes.
const ranges = 10

// hangingSubsystem has namespace 1 on a device that tests may hold, with a timeout of two seconds,
// and namespace 2 in memory.
func hangingSubsystem(t *testing.T) (subsystems.Config, *backendtest.Faulty) {
	sub, dev := faultySubsystem(t)
	sub.Namespaces[0].Timeout = 2 * time.Second
	sub.Namespaces = append(sub.Namespaces,
		namespaces.Config{NSID: 2, Device: ramDevice(t, 1<<20, 512)})
	return sub, dev
}

// onHanging connects a host to a target with hangingSubsystem.
func onHanging(t *testing.T, reactors, queues int) (*harness, *host, *backendtest.Faulty) {
	t.Helper()
	sub, dev := hangingSubsystem(t)
	r, h := joined(t, reactors, queues, sub)
	return r, h, dev
}

// notReady sends a command and expects it to be refused after a delay.
func (r *harness) notReady(q *fabrictest.Queue, c *fabrictest.Command) {
	r.t.Helper()
	r.send(q, c)
	r.until("the refusal waits", func() bool {
		for _, h := range r.raw {
			if !h.delayed.list.Empty() {
				return true
			}
		}
		return c.Done
	})
	if c.Done {
		r.t.Errorf("opcode %#x was refused at once: %v", c.SQE.Opcode(), c.CQE.Status())
	}
	r.w.Advance(time.Duration(notReadyDelay))
	const want = nvme.InternalPathError
	if st := c.CQE.Status() &^ nvme.More; !c.Done || st != want {
		r.t.Errorf("opcode %#x: done %v, %v, want %v", c.SQE.Opcode(), c.Done, st, want)
	}
}

// everyCommand has one of each command that a device carries out.
func everyCommand() []*fabrictest.Command {
	return []*fabrictest.Command{
		rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)),
		rw(nvme.NVMWrite, 1, 64, 64, bytes.Repeat([]byte{7}, 32768)),
		rw(nvme.NVMWriteZeroes, 1, 256, 8, nil), command(nvme.NVMFlush, 1, nil),
		command(nvme.NVMFlush, nvme.NSIDAll, nil),
		dsm(1, true, [2]uint64{512, 8}, [2]uint64{600, 8}),
		rw(nvme.NVMCompare, 1, 1024, 8, make([]byte, 4096)), rw(nvme.NVMVerify, 1, 1024, 16, nil),
		copyTo(1100, nvme.CopyRanges, source{slba: 1024, blocks: 24}),
	}
}

func (r *harness) nstat(h *host) nvme.NSTAT {
	r.t.Helper()
	return nvme.NSTAT(r.ok(h.admin, identifyCommand(nvme.CNSIndependentNamespace, 1)).Data[14])
}

// hang is a device that does not answer, and the host of its namespace.
type hang struct {
	*harness
	dev *backendtest.Faulty
	h   *host
}

// slowToOpen is a device with channels that do not open until ready is closed.
type slowToOpen struct {
	backend.Device
	ready chan struct{}
	seen  int
}

func (d *slowToOpen) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	<-d.ready
	f := backendtest.NewFaulty(d.Device)
	f.Fail(func(*backend.IO) error { d.seen++; return nil })
	return f.OpenChannel(r)
}

// TestTimeoutBeforeTheDevice: commands that the device has not seen are given up, and the namespace
// stays ready.
func TestTimeoutBeforeTheDevice(t *testing.T) {
	sub, _ := hangingSubsystem(t)
	dev := &slowToOpen{Device: ramDevice(t, 1<<20, 512), ready: make(chan struct{})}
	sub.Namespaces[0].Device = dev
	r, h := joined(t, 1, 1, sub)
	q := h.io[0]
	all := everyCommand()
	for _, c := range all {
		r.send(q, c)
	}
	r.w.Advance(2*time.Second*ranges + time.Second)
	for _, c := range all {
		if st := c.CQE.Status() &^ nvme.More; !c.Done || st != notReady {
			t.Errorf("opcode %#x: done %v, %v", c.SQE.Opcode(), c.Done, st)
		}
	}
	testutil.True(t, r.nstat(h)&nvme.NSTATReady != 0,
		"the namespace is not ready although the device has nothing")
	close(dev.ready)
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	testutil.True(t, dev.seen == 1, "the device saw %d commands that were given up", dev.seen-1)
}

// TestTimeoutFence: a command whose writes the storage could carry out after a retry elsewhere is
// given up only when the storage refuses them. A read is given up at once.
func TestTimeoutFence(t *testing.T) {
	r, h, dev := onHanging(t, 1, 1)
	asked, fenced := 0, false
	dev.OnFence(func() bool { asked++; return fenced })
	dev.Hold(nil)
	q := h.io[0]
	read := r.send(q, rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
	writes := []*fabrictest.Command{
		r.send(q, rw(nvme.NVMWrite, 1, 64, 8, make([]byte, 4096))),
		r.send(q, rw(nvme.NVMWriteZeroes, 1, 256, 8, nil)),
		r.send(q, dsm(1, true, [2]uint64{512, 8}, [2]uint64{600, 8})),
	}
	r.until("the device has all", func() bool { return dev.Held() == 5 })
	r.w.Advance(time.Second)
	testutil.Equal(t, asked, 0, "calls before the timeout")
	r.w.Advance(2 * time.Second * ranges)
	testutil.True(t, read.Done && asked > 0, "read done %v, %d calls", read.Done, asked)
	for _, c := range writes {
		testutil.True(t, !c.Done, "opcode %#x is done before the fence", c.SQE.Opcode())
	}
	fenced = true
	r.w.Advance(time.Second)
	for _, c := range writes {
		st := c.CQE.Status() &^ nvme.More
		testutil.True(t, c.Done && st == notReady, "opcode %#x: done %v, %v", c.SQE.Opcode(),
			c.Done, st)
	}
	dev.Release()
	r.w.Settle()
	r.ok(q, rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
}

// TestManyTimeouts: a step looks for timeouts in a bounded number of commands, and all of them are
// found in the end.
func TestManyTimeouts(t *testing.T) {
	const queues, each = 24, 100
	sub, dev := hangingSubsystem(t)
	r := newHarness(t, 1, sub)
	var list []*fabrictest.Command
	dev.Hold(nil)
	for range queues {
		q := r.connectHost(1).io[0]
		for range each {
			list = append(list, r.send(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))))
		}
	}
	r.until("the device has all", func() bool { return dev.Held() == len(list) })
	h := r.raw[0]
	h.stopTimeouts()
	h.stopTimeouts = func() {} // no timer looks for them
	r.w.Advance(3 * time.Second)
	done := func() (n int) {
		for _, c := range list {
			if c.Done {
				n++
			}
		}
		return n
	}
	h.checkTimeouts()
	h.run()
	if n := done(); n == 0 || n > stepMost {
		t.Fatalf("one step gives up %d of %d commands", n, len(list))
	}
	r.until("all are given up", func() bool {
		r.w.Advance(time.Millisecond)
		return done() == len(list)
	})
	dev.Release()
	r.w.Settle()
}

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

// stuckPart is a host with storage that keeps one IO of a command, and carries out the others some
// at a time.
type stuckPart struct {
	*harness
	slow, stuck *backendtest.Faulty
	command     *fabrictest.Command
	other       *fabrictest.Queue // of the host
	begun       int64
}

// stuckParts are commands of 200 parts, of which the second one, block 1, will be stuck.
func stuckParts() map[string]*fabrictest.Command {
	ranges, sources := make([][2]uint64, 200), make([]source, 200)
	for i := range sources {
		ranges[i] = [2]uint64{uint64(i), 1}
		sources[i] = source{slba: uint64(1000 + i), blocks: 1}
	}
	return map[string]*fabrictest.Command{
		"Dataset Management": dsm(1, true, ranges...),
		"Copy":               copyTo(0, nvme.CopyRanges, sources...),
	}
}

func newStuckPart(t *testing.T, c *fabrictest.Command, timeout time.Duration) *stuckPart {
	t.Helper()
	sub, slow := faultySubsystem(t)
	stuck := backendtest.NewFaulty(slow)
	sub.Namespaces[0].Device, sub.Namespaces[0].Timeout = stuck, timeout
	p := &stuckPart{harness: newHarness(t, 3, sub), slow: slow, stuck: stuck, command: c}
	q := p.connectHost(1).io[0]
	p.other = p.connectHost(0).connectIO(2)
	for _, q := range []*fabrictest.Queue{q, p.other} { // opens the channel
		p.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	}
	stuck.Hold(func(io *backend.IO) bool { return io.Op != backend.OpRead && io.Off == 512 })
	slow.Fail(func(*backend.IO) error { slow.Hold(nil); return nil }) // hold the IOs after Release
	p.send(q, c)
	p.w.Settle()
	p.begun = p.now()
	return p
}

func (p *stuckPart) now() int64 { return p.w.Reactors[0].Now() }

// step lets the storage carry out its IOs, except the stuck one, after d.
func (p *stuckPart) step(d time.Duration) {
	p.w.Advance(d)
	p.slow.Release()
	p.w.Settle()
}

// goOn ends the steps.
func (p *stuckPart) goOn() {
	p.slow.Fail(nil)
	p.slow.Release()
	p.w.Settle()
}

// TestLatePart: a part of a command is late although others go on.
func TestLatePart(t *testing.T) {
	for name, c := range stuckParts() {
		p := newStuckPart(t, c, 0)
		for range 5 {
			p.step(time.Duration(slowWrite) * 3 / 5)
		}
		p.goOn()
		retry := p.send(p.other, rw(nvme.NVMWriteZeroes, 1, 0, 2, nil))
		p.ok(p.other, rw(nvme.NVMWriteZeroes, 1, 2, 1, nil))
		testutil.True(t, !retry.Done && !c.Done, "%s: retry %v, command %v", name, retry.Done,
			c.Done)
		p.stuck.Release()
		p.until(name, func() bool { return retry.Done && c.Done })
	}
}

// TestTimeoutOfPart: a command times out for the part that is stuck although others go on.
func TestTimeoutOfPart(t *testing.T) {
	for name, c := range stuckParts() {
		p := newStuckPart(t, c, time.Second)
		limit := time.Second
		if c.SQE.Opcode() == nvme.NVMDatasetManagement {
			limit *= ranges
		}
		for !c.Done && time.Duration(p.now()-p.begun) < 3*limit {
			p.step(limit * 3 / 5)
		}
		testutil.Equal(t, c.CQE.Status()&^nvme.More, notReady, "%s: done %v", name, c.Done)
		p.goOn()
		p.stuck.Release()
		p.w.Settle()
	}
}

// TestLateAllocations: the end of a queue allocates nothing for each of its writes, which are at
// most as many as its entries, and become late in one step.
func TestLateAllocations(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	r := newHarness(t, 1, sub)
	h := r.connectHost(2)
	r.ok(h.io[0], write(0, 'x'))
	dev.Hold(nil)
	for i := range 100 {
		for _, q := range h.io {
			r.send(q, write(uint64(i), 'x'))
		}
	}
	r.w.Settle()
	c := r.target.find(testSub).lookup(h.cntlid)
	queue := uint16(0)
	allocations := testing.AllocsPerRun(1, func() { // which calls it twice
		queue++
		r.raw[0].holdLate(c.queues[queue], r.raw[0].loop.Now())
	})
	testutil.Equal(t, queue, 2, "queues")
	testutil.True(t, allocations < 50, "%v allocations for 100 writes", allocations)
	testutil.Equal(t, r.raw[0].channels[0].State().Busy.Awaited, 200, "late writes")
	dev.Release()
	r.w.Settle()
}
