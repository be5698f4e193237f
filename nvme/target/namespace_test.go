package target

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestUpdateKeepsAnswers: the answers of a drive and of thin storage stay known while both stay the
// same.
func TestUpdateKeepsAnswers(t *testing.T) {
	dev := &thinDevice{Device: ramDevice(t, 1<<20, 512)}
	dev.used.Store(4096)
	cfg := namespaces.Config{NSID: 1, Device: dev, Drive: &testDrive{id: "a"}}
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, Namespaces: []namespaces.Config{cfg}})
	r.target.CheckHealth()
	update := func(id string) observed.Namespace {
		cfg.Drive = &testDrive{id: id}
		r.must(r.target.UpdateNamespace(testSub, cfg, nil))
		return r.target.Stats()[0]
	}
	if s := update("a"); s.Drive.Answered.IsZero() || s.Allocated != 4096 {
		t.Errorf("%+v, %d bytes are allocated", s.Drive, s.Allocated)
	}
	s := update("b")
	testutil.True(t, s.Drive.Answered.IsZero() && s.Drive.ID == "b", "%+v", s.Drive)
}

// instance is storage that is opened once more. It counts its channels.
type instance struct {
	backend.Device
	channels atomic.Int64
}

type zeroCopyChannel interface {
	backend.ZeroCopyReader
	backend.ZeroCopyWriter
}

type instanceChannel struct {
	zeroCopyChannel
	d *instance
}

func (d *instance) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	ch, err := d.Device.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	d.channels.Add(1)
	return &instanceChannel{ch.(zeroCopyChannel), d}, nil
}

func (c *instanceChannel) Close() error {
	c.d.channels.Add(-1)
	return c.zeroCopyChannel.Close()
}

// exchange is an UpdateNamespace with a swap function that waits for the test.
type exchange struct {
	r      *harness
	old    chan backend.Device
	finish chan func() (backend.Device, error)
	result chan error
}

// exchange starts to exchange the device of namespace 1 and returns when commands wait.
func (r *harness) exchange(cfg namespaces.Config) (*exchange, backend.Device) {
	r.t.Helper()
	x := r.startExchange(cfg)
	r.until("the device is given up", func() bool { return len(x.old) > 0 })
	return x, <-x.old
}

func (r *harness) startExchange(cfg namespaces.Config) *exchange {
	x := &exchange{
		r, make(chan backend.Device, 1), make(chan func() (backend.Device, error), 1),
		make(chan error, 1),
	}
	cfg.NSID = 1
	go func() {
		defer r.w.Reactors[0].Wake()
		x.result <- r.target.UpdateNamespace(testSub, cfg,
			func(old backend.Device) (backend.Device, error) {
				x.old <- old
				r.w.Reactors[0].Wake()
				return (<-x.finish)()
			})
	}()
	return x
}

// end lets swap return dev and err, and returns the result of UpdateNamespace.
func (x *exchange) end(dev backend.Device, err error) error {
	x.r.t.Helper()
	x.finish <- func() (backend.Device, error) { return dev, err }
	return x.wait()
}

func (x *exchange) wait() error {
	x.r.t.Helper()
	x.r.until("the exchange ends", func() bool { return len(x.result) > 0 })
	return <-x.result
}

func readAt(slba uint64) *fabrictest.Command {
	return rw(nvme.NVMRead, 1, slba, 1, make([]byte, 512))
}

// TestSwapHungDevice: a device that does not finish is not exchanged, and all goes on with it.
func TestSwapHungDevice(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r, h := joined(t, 1, 1, sub)
	dev.Hold(nil)
	first := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	r.target.common.DrainDeadline = time.Millisecond
	x := r.startExchange(sub.Namespaces[0])
	err := x.wait()
	testutil.True(t, errors.Is(err, namespaces.ErrBusy) &&
		strings.Contains(err.Error(), "namespace 1") &&
		len(x.old) == 0, "%v, swap is called: %v", err, len(x.old) > 0)
	second := r.send(h.io[0], readAt(1))
	r.until("the device has the next IO", func() bool { return dev.Held() == 2 })
	dev.Release()
	r.until("both complete", func() bool { return first.Done && second.Done })
	testutil.True(t, first.CQE.Status().OK() && second.CQE.Status().OK(), "%v, %v",
		first.CQE.Status(), second.CQE.Status())
}

// TestSwapZeroCopy: hosts that take their time with the memory of the device hold up the exchange,
// but no command of others.
func TestSwapZeroCopy(t *testing.T) {
	first := &instance{Device: ramDevice(t, 64<<20, 512)}
	b := newBare(t, namespaces.Config{NSID: 1, Device: first}, 32)
	slow := b.prepareReads(2)
	testutil.MustTrue(t, slow[0].ZeroCopy, "no zero copy")
	b.h.Execute(slow[:1])
	reqs := b.reqs
	b.reqs = b.reqs[2:]
	unsent := b.prepareWrites(1, false)[0]
	if b.reqs = b.reqs[1:]; !unsent.ZeroCopy || b.h.WriterWaits(unsent) {
		t.Error("no zero-copy write, or something waits for it")
	}
	swapped := make(chan error, 1)
	go func() {
		swapped <- b.h.t.UpdateNamespace(testSub, namespaces.Config{NSID: 1},
			func(backend.Device) (backend.Device, error) {
				testutil.Equal(t, first.channels.Load(), 0, "channels are open")
				return &instance{Device: first.Device}, nil
			})
		b.w.Reactors[0].Wake()
	}()
	ch := b.h.channels[0]
	until := func(cond func() bool) {
		t.Helper()
		testutil.Must(t, b.w.Until(cond))
	}
	until(func() bool { return ch.State().Quiesce == dispatch.QuiesceZeroCopy })
	b.w.Settle()
	testutil.True(t, ch.State().Busy.ZeroCopies > 0, "zero-copy reads are not waited for")
	if write := b.prepareWrites(1, false); write[0].ZeroCopy {
		t.Error("a zero-copy write begins")
	} else {
		b.h.Abandon(write[0])
	}
	other := b.prepareReads(1)
	testutil.True(t, !other[0].ZeroCopy, "a zero-copy read begins")
	other[0].Segs = append(other[0].Segs, mem.Segment{B: make([]byte, 4096)})
	done := b.q.done
	b.h.Execute(other)
	until(func() bool { return b.q.done == done+1 })
	testutil.True(t, b.q.bad <= 0 && len(swapped) == 0, "%d failed, exchanged %v", b.q.bad,
		len(swapped) > 0)
	testutil.True(t, b.h.WriterWaits(slow[0]) && b.h.WriterWaits(unsent),
		"the transport is not told that the memory is waited for")
	b.h.Abandon(unsent)
	b.h.EndZeroCopy(unsent)
	b.h.EndZeroCopy(slow[0])
	b.h.Abandon(slow[1])
	b.h.EndZeroCopy(slow[1])
	until(func() bool { return len(swapped) > 0 })
	testutil.Check(t, <-swapped)
	until(func() bool { return ch.State().Open })
	b.reqs = reqs
	again := b.prepareReads(1)
	testutil.True(t, again[0].ZeroCopy, "no zero copy after the exchange")
	b.h.Execute(again)
	b.h.EndZeroCopy(again[0])
}

func (r *harness) pause() {
	r.t.Helper()
	r.during(func() error { return r.target.PauseNamespace(testSub, 1) })
	testutil.True(r.t, r.target.Stats()[0].State == "paused", "the namespace is not paused")
}

func (r *harness) resume() {
	r.t.Helper()
	r.during(func() error { return r.target.ResumeNamespace(testSub, 1) })
	testutil.True(r.t, r.target.Stats()[0].State != "paused", "the namespace is paused")
}

// TestPause: commands wait on all reactors while the namespace is paused and its device has no
// channel, also when it is changed meanwhile, and then go on.
func TestPause(t *testing.T) {
	dev := &instance{Device: ramDevice(t, 1<<20, 512)}
	next := &instance{Device: dev.Device}
	r, h := joined(t, 2, 2, subsystemOf(testSub, dev))
	r.ok(h.io[0], readAt(0))
	send := func() (commands []*fabrictest.Command) {
		for _, q := range h.io {
			commands = append(commands, r.send(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))))
		}
		return commands
	}
	wait := func(commands []*fabrictest.Command, want nvme.Status) {
		t.Helper()
		r.until("commands go on", func() bool { return commands[0].Done && commands[1].Done })
		for _, c := range commands {
			testutil.Equal(t, c.CQE.Status()&^nvme.More, want, "")
		}
	}
	r.pause()
	commands := send()
	r.pause() // again
	r.target.common.CloseDeadline = time.Millisecond
	testutil.Equal(t, r.target.find(testSub).Namespaces.Load().Get(1).Pause(), nil,
		"a reactor is told again")
	r.target.common.CloseDeadline = closeDeadline
	if r.w.Settle(); commands[0].Done || commands[1].Done || dev.channels.Load() != 0 {
		t.Errorf("done %v %v, %d channels", commands[0].Done, commands[1].Done, dev.channels.Load())
	}
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1, ReadOnly: true}, nil)
	})
	r.resume()
	wait(commands, writeProtected)
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1}, nil)
	})
	r.pause()
	commands = send()
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1},
			func(backend.Device) (backend.Device, error) { return next, nil })
	})
	if r.w.Settle(); commands[0].Done || commands[1].Done || next.channels.Load() != 0 {
		t.Error("the exchange of the device has ended the pause")
	}
	r.resume()
	wait(commands, nvme.Success)
	r.resume() // again
	testutil.True(t, next.channels.Load() == 2, "the new device has %d channels",
		next.channels.Load())
}

// TestExchangeFlushes: no later flush reaches a device that is exchanged, or that others may change
// during a pause. So it is flushed before. If that fails, it stays, and its lost writes are known.
func TestExchangeFlushes(t *testing.T) {
	cached := func(i *backend.Info) { i.VolatileCache = true }
	dev, again := backendtest.NewFaulty(described(t, cached)), described(t, cached)
	next := described(t, cached)
	r, h := joined(t, 2, 2, subsystemOf(testSub, dev))
	write := func() { // after which all channels are open
		for _, q := range h.io {
			r.ok(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
		}
	}
	write()
	flushes := func(err error) func() int64 {
		n := new(atomic.Int64)
		dev.Fail(func(io *backend.IO) error {
			if io.Op != backend.OpFlush {
				return nil
			}
			n.Add(1)
			return err
		})
		return n.Load
	}
	n := flushes(nil)
	r.pause()
	testutil.Equal(t, n(), 4, "flushes before a pause, two by each reactor")
	r.resume()
	write()
	x, _ := r.exchange(namespaces.Config{})
	testutil.Equal(t, n(), 8, "flushes before an exchange")
	testutil.Check(t, x.end(dev, nil))
	flushes(backend.ErrDegraded)
	x = r.startExchange(namespaces.Config{})
	err := x.wait()
	testutil.True(t, errors.Is(err, backend.ErrDegraded) && len(x.old) == 0,
		"%v, swap is called: %v", err, len(x.old) > 0)
	testutil.True(t, r.target.Stats()[0].Degraded, "the lost writes are not known")
	n = flushes(nil)
	x, _ = r.exchange(namespaces.Config{})
	failed := errors.New("failed")
	testutil.Is(t, x.end(again, failed), failed, "")
	c := r.do(h.io[0], command(nvme.NVMFlush, 1, nil))
	testutil.True(t, r.target.Stats()[0].Degraded && !c.CQE.Status().OK(),
		"an exchange that fails lets the lost writes be forgotten: %v", c.CQE.Status())
	x, _ = r.exchange(namespaces.Config{})
	testutil.Check(t, x.end(next, nil))
	testutil.True(t, n() == 0 && !r.target.Stats()[0].Degraded,
		"%d flushes before the known losses are given up, %+v", n(), r.target.Stats()[0])
}

// TestDegradedFromOutside: no flush succeeds, although the device, opened again, would flush.
func TestDegradedFromOutside(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	r.during(func() error { return r.target.DegradeNamespace(testSub, 1) })
	c := r.do(h.io[0], command(nvme.NVMFlush, 1, nil))
	testutil.Equal(t, c.CQE.Status()&^nvme.More, nvme.WriteFault, "a flush")
}

// TestLongFlush: commands go on during a flush that takes long. It is repeated while they wait. If
// it takes too long, the device stays.
func TestLongFlush(t *testing.T) {
	dev := backendtest.NewFaulty(described(t, func(i *backend.Info) { i.VolatileCache = true }))
	r, h := joined(t, 1, 1, subsystemOf(testSub, dev))
	r.ok(h.io[0], readAt(0))
	for _, limit := range []time.Duration{closeDeadline, time.Millisecond} {
		dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpFlush })
		r.target.common.CloseDeadline, r.target.common.DrainDeadline = limit, limit
		x := r.startExchange(namespaces.Config{})
		r.until("the device has the flush", func() bool { return dev.Held() == 1 })
		r.ok(h.io[0], readAt(0))
		if limit == closeDeadline {
			dev.Release()
			r.until("swap is called", func() bool { return len(x.old) > 0 })
			testutil.Check(t, x.end(dev, nil))
			continue
		}
		testutil.Is(t, x.wait(), namespaces.ErrBusy, "")
		testutil.True(t, len(x.old) == 0, "swap is called")
		dev.Release()
		r.ok(h.io[0], readAt(0))
	}
}

// TestPauseHungDevice: a namespace is not paused if its device does not finish its IOs.
func TestPauseHungDevice(t *testing.T) {
	r, h, dev := onFaulty(t, 1, 1)
	dev.Hold(nil)
	read := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	r.target.common.DrainDeadline = time.Millisecond
	result := make(chan error, 1)
	go func() {
		result <- r.target.PauseNamespace(testSub, 1)
		r.w.Reactors[0].Wake()
	}()
	r.until("it gives up", func() bool { return len(result) > 0 })
	if err := <-result; !errors.Is(err, namespaces.ErrBusy) ||
		r.target.Stats()[0].State == "paused" {
		t.Errorf("%v, %+v", err, r.target.Stats()[0])
	}
	dev.Release()
	r.until("the command completes", func() bool { return read.Done })
	r.ok(h.io[0], readAt(0))
}

// TestRemovePaused: commands that wait do not keep a paused namespace from being removed.
func TestRemovePaused(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	r.pause()
	read := r.send(h.io[0], readAt(0))
	r.w.Settle()
	r.removeNamespace(1)
	testutil.True(t, read.Done && read.CQE.Status().OK(), "%v %v", read.Done, read.CQE.Status())
	testutil.True(t, r.target.PauseNamespace(testSub, 1) != nil,
		"a namespace was paused that does not exist")
}

// remove calls fn, which removes something, and waits until nothing uses it any more.
func (r *harness) remove(fn func() (gone <-chan struct{}, err error)) {
	r.t.Helper()
	gone, err := fn()
	r.must(err)
	r.must(untilGone(r.w, gone))
}

func (r *harness) removeNamespace(nsid uint32) {
	r.t.Helper()
	r.remove(func() (<-chan struct{}, error) { return r.target.RemoveNamespace(testSub, nsid) })
}

func (r *harness) removeSubsystem() {
	r.t.Helper()
	r.remove(func() (<-chan struct{}, error) { return r.target.RemoveSubsystem(testSub, true) })
}

// untilGone runs the reactors until the channel is closed.
func untilGone(w *fabrictest.World, gone <-chan struct{}) error {
	go func() {
		<-gone
		w.Reactors[0].Wake()
	}()
	return w.Until(func() bool { return closed(gone) })
}

// stays checks that gone is still open after a moment.
func (r *harness) stays(gone <-chan struct{}) {
	r.t.Helper()
	r.w.Settle()
	select {
	case <-gone:
		r.t.Error("it is gone too early")
	case <-time.After(10 * time.Millisecond):
	}
}

// closed reports whether the channel is.
func closed[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestRemoveNamespaceUnderIO: commands that the device has complete, later ones are refused, then
// the device may be closed (Q05, F-33).
func TestRemoveNamespaceUnderIO(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 2)
	dev.Hold(nil)
	read := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	many := r.send(h.io[1],
		dsm(1, true, [2]uint64{0, 1}, [2]uint64{1, 1}, [2]uint64{2, 1}, [2]uint64{3, 1},
			[2]uint64{4, 1},
			[2]uint64{5, 1}, [2]uint64{6, 1}, [2]uint64{7, 1}, [2]uint64{8, 1}, [2]uint64{9, 1}))
	r.until("the device has the IOs", func() bool { return dev.Held() == 1+compoundWidth })
	gone, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	r.status(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), inactiveNamespace)
	testutil.MustTrue(t, !closed(gone) && !read.Done, "removed while the device has I/O")
	dev.Release()
	r.must(untilGone(r.w, gone))
	r.until("what the device did not have ends", func() bool { return many.Done })
	testutil.True(t, read.Done && read.CQE.Status().OK() && many.Done && many.CQE.Status().OK(),
		"read %v %v, deallocate %v %v", read.Done, read.CQE.Status(), many.Done, many.CQE.Status())
	// The same device and NSID again.
	r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: dev}))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
}

// TestRemoveHungNamespace: a device that hangs delays only its own removal. The NSID is free at
// once, the counters that hosts see stay, and Close reports the namespace that it waited for.
func TestRemoveHungNamespace(t *testing.T) {
	sub, dev := faultySubsystem(t)
	next := ramDevice(t, 1<<20, 512)
	r, h := joined(t, 1, 1, sub)
	reads := func() uint64 {
		l, err := nvme.Parse[nvme.SMARTLog](r.ok(h.admin,
			logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0)).Data)
		r.must(err)
		n, _ := l.HostReads.Uint64()
		return n
	}
	read := func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)) }
	r.ok(h.io[0], read())
	dev.Hold(nil)
	r.send(h.io[0], read())
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	removed := r.target.find(testSub).Namespaces.Load().Get(1)
	gone, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: next}))
	r.ok(h.io[0], read())
	r.ok(h.admin, logCommand(nvme.LogChangedNamespaces, 4096, 0))
	removed.Orphaned(func(func()) {}) // it is not ready
	r.w.Settle()
	testutil.True(t, r.ok(h.admin, logCommand(nvme.LogChangedNamespaces, 4, 0)).Data[0] == 0,
		"a change of the removed namespace is reported as one of its successor")
	if n := reads(); n != 2 || closed(gone) {
		t.Errorf("%d reads, gone %v", n, closed(gone))
	}
	r.target.common.CloseDeadline = time.Millisecond
	r.w.Settle()
	if err := r.target.Close(); !errors.Is(err, namespaces.ErrBusy) ||
		!strings.Contains(err.Error(), "namespace 1 of") {
		t.Errorf("%v", err)
	}
	dev.Release()
	r.must(untilGone(r.w, gone))
	r.target.common.CloseDeadline = closeDeadline
	r.during(r.target.Close)
	for _, ns := range r.target.slots {
		testutil.True(t, ns == nil, "a slot is not free")
	}
}

// TestRemoveWhileSwapping: a namespace that is removed is gone when its device is no longer being
// exchanged, and the new one does not notify it; commands that waited complete.
func TestRemoveWhileSwapping(t *testing.T) {
	for _, waits := range []bool{false, true} {
		next := &changing{Device: ramDevice(t, 1<<20, 512)}
		next.i = next.Device.Info()
		r, h := joined(t, 1, 1, ramSubsystem(t, 1))
		r.ok(h.io[0], readAt(0))
		x, _ := r.exchange(namespaces.Config{})
		var read *fabrictest.Command
		if waits {
			read = r.send(h.io[0], readAt(0))
		}
		gone, err := r.target.RemoveNamespace(testSub, 1)
		r.must(err)
		r.status(h.io[0], readAt(0), inactiveNamespace)
		r.stays(gone)
		r.must(x.end(next, nil))
		r.must(untilGone(r.w, gone))
		if waits && (!read.Done || !read.CQE.Status().OK()) {
			t.Error(read.Done, read.CQE.Status())
		}
		testutil.True(t, next.notify == nil, "the device notifies a namespace that was removed")
	}
}

// TestCloseWhileSwapping: the target closes when the exchange has ended.
func TestCloseWhileSwapping(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	r, h := joined(t, 1, 1, subsystemOf(testSub, dev))
	r.ok(h.io[0], readAt(0))
	x, _ := r.exchange(namespaces.Config{})
	r.send(h.io[0], readAt(0))
	r.target.common.CloseDeadline = time.Millisecond
	result := make(chan error, 1)
	go func() {
		result <- r.target.Close()
		r.w.Reactors[0].Wake()
	}()
	r.until("the target waits", func() bool { return len(result) > 0 })
	testutil.Is(t, <-result, namespaces.ErrBusy, "")
	r.target.common.CloseDeadline = closeDeadline
	r.must(x.end(dev, nil))
	r.until("the queues end", func() bool { return r.target.Sessions() == 0 })
}

// odd is a device with an invalid description.
type odd struct {
	backend.Device
	info backend.Info
}

func (d odd) Info() backend.Info { return d.info }

// TestSubsystemConfig: an error names its place, and nothing is added.
func TestSubsystemConfig(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	serial := strings.Repeat("s", 21)
	ns := func(list ...namespaces.Config) func(*subsystems.Config) {
		return func(c *subsystems.Config) { c.Namespaces = list }
	}
	on := func(size int64, blockSize int) func(*subsystems.Config) {
		d := odd{dev, backend.Info{Size: size, BlockSize: blockSize}}
		return ns(namespaces.Config{NSID: 1, Device: d})
	}
	two, last := namespaces.Config{NSID: 2, Device: dev}, namespaces.Config{Device: dev}
	last.NSID = namespaces.MaxNSID + 1
	for want, change := range map[string]func(*subsystems.Config){
		"invalid NQN":             func(c *subsystems.Config) { c.NQN = "nqn.disk\x00" },
		"is built in":             func(c *subsystems.Config) { c.NQN = nvme.DiscoveryNQN },
		"exists already":          func(c *subsystems.Config) { c.NQN = testSub + ".taken" },
		"serial":                  func(c *subsystems.Config) { c.Serial = serial },
		"printable":               func(c *subsystems.Config) { c.Serial = "a\x1fb" },
		"model":                   func(c *subsystems.Config) { c.Model = strings.Repeat("m", 41) },
		"CNTLID range 7 to 6":     func(c *subsystems.Config) { c.CNTLIDMin, c.CNTLIDMax = 7, 6 },
		"CNTLID range 1 to 65520": func(c *subsystems.Config) { c.CNTLIDMax = 65520 },
		"I/O queues":              func(c *subsystems.Config) { c.MaxIOQueues = 65535 },
		"queue size 31":           func(c *subsystems.Config) { c.MaxQueueSize = 31 },
		"largest transfer 98304":  func(c *subsystems.Config) { c.MaxTransfer = 96 << 10 },
		"largest transfer 838860": func(c *subsystems.Config) { c.MaxTransfer = 8 << 20 },
		"largest transfer 32768":  func(c *subsystems.Config) { c.MaxTransfer = 32 << 10 },
		"host: invalid NQN":       func(c *subsystems.Config) { c.Hosts = []string{""} },

		"nsid must be 1 to":              ns(last),
		"namespace 0: nsid":              ns(namespaces.Config{Device: dev}),
		"no device":                      ns(namespaces.Config{NSID: 1}),
		"namespace 2 is given twice":     ns(two, two),
		"block size 520: must be":        on(1<<20, 520),
		"size 511 is below one block of": on(511, 512),
	} {
		t.Run(want, func(t *testing.T) {
			target := New(Options{})
			testutil.Must(t, target.AddSubsystem(subsystems.Config{NQN: testSub + ".taken"}))
			c := subsystems.Config{NQN: testSub}
			change(&c)
			err := target.AddSubsystem(c)
			testutil.Fails(t, err, want, "")
			testutil.Equal(t, len(*target.table.Load()), 1, "subsystems")
			for _, used := range target.slots {
				testutil.True(t, used == nil, "a namespace slot leaked")
			}
		})
	}
}

// TestNamespaceCalls: additions and removals that are refused.
func TestNamespaceCalls(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for want, err := range map[string]error{
		"does not exist": r.target.AddNamespace(testSub+"2",
			namespaces.Config{NSID: 2, Device: dev}),
		"exists already": r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: dev}),
		"no device":      r.target.AddNamespace(testSub, namespaces.Config{NSID: 2}),
		"port 1 exists": firstError(r.target.AddPort(discovery.Port{ID: 1}),
			r.target.AddPort(discovery.Port{ID: 1})),
		"has no namespace": second(r.target.RemoveNamespace(testSub, 2)),
	} {
		testutil.Fails(t, err, want, "")
	}
}

func second[T any](_ T, err error) error { return err }

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestClosedTarget: a closed target accepts nothing.
func TestClosedTarget(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h, idle := r.connectHost(1), r.dial(0)
	r.during(r.target.Close)
	r.w.Settle()
	testutil.True(t, h.admin.Closed() && h.io[0].Closed() && idle.Closed(), "queues are still open")
	if _, err := fabrictest.Dial(r.w.Reactors[0], r.raw[0], info(nvme.TransportTCP)); err == nil {
		t.Error("a queue was opened")
	}
	testutil.True(t, r.target.AddSubsystem(subsystems.Config{NQN: testSub}) != nil,
		"a subsystem was added")
	testutil.True(t, testutil.Err(r.target.NewHandler(HandlerConfig{Loop: r.w.Reactors[0]})) != nil,
		"a handler was made")
	testutil.True(t, testutil.Err(r.target.NewHandler(HandlerConfig{})) != nil,
		"a handler without a loop was made")
}

// TestCloseWithoutReactors: a target closes at once if its reactors never ran.
func TestCloseWithoutReactors(t *testing.T) {
	w := testutil.Value(fabrictest.NewWorld(1))(t)
	target := New(Options{})
	testutil.Must(t, target.AddSubsystem(ramSubsystem(t, 3)))
	testutil.Value(target.NewHandler(HandlerConfig{Loop: w.Reactors[0]}))(t)
	testutil.Check(t, target.Close())
	testutil.Check(t, w.Close())
}

// TestSubsystemName: a name of another form is served.
func TestSubsystemName(t *testing.T) {
	const name = "blktests-subsystem-1"
	sub := ramSubsystem(t, 1)
	sub.NQN = name
	r := newHarness(t, 1, sub, ramSubsystem(t, 0))
	h := r.connectHost(1, on(name))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	got, _ := nvme.ParseNQN(&h.controller().SUBNQN)
	testutil.True(t, got == name, "SUBNQN %q", got)
}
