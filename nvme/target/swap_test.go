package target

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

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

// TestSwapWaits: commands wait while the device is exchanged, are aborted, end with their queue and
// time out as if they waited for a device, and continue in the end.
func TestSwapWaits(t *testing.T) {
	sub, dev := faultySubsystem(t)
	sub.Namespaces[0].Timeout = 2 * time.Second
	r, h := joined(t, 2, 3, sub)
	dev.Hold(nil)
	before := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	x := r.startExchange(sub.Namespaces[0])
	var waiting []*fabrictest.Command
	r.until("commands wait", func() bool { return quiesced(r.raw[1].channels[0]) })
	for _, q := range h.io { // the second is on another reactor, which has no channel yet
		waiting = append(waiting, r.send(q, readAt(1)))
	}
	many := r.send(h.io[1], dsm(1, true, [2]uint64{0, 1}, [2]uint64{1, 1}))
	r.w.Settle()
	testutil.MustTrue(t, len(x.old) == 0 && !before.Done,
		"the device is exchanged although it has an IO")
	dev.Release()
	r.until("the device is given up", func() bool { return len(x.old) > 0 })
	old := <-x.old
	testutil.True(t, old == backend.Device(dev), "swap is called with %v", old)
	testutil.True(t, before.Done && before.CQE.Status().OK(), "the IO that the device had: %v, %v",
		before.Done, before.CQE.Status())
	r.raw[1].Poll(64)
	testutil.True(t, r.raw[1].Arm(), "the reactor polls although its commands wait")
	abort := r.ok(h.admin, abortCommand(1, waiting[0].SQE.CID()))
	if abort.CQE.DW0() != 0 || waiting[0].CQE.Status() != nvme.AbortRequested {
		t.Errorf("Abort: %#x, the command: %v", abort.CQE.DW0(), waiting[0].CQE.Status())
	}
	h.io[2].HangUp()
	r.w.Settle()
	testutil.Equal(t, h.io[2].Outstanding(), 0, "commands of a queue that has ended are left")
	testutil.True(t, !waiting[1].Done && !many.Done, "a command does not wait")
	late := r.send(h.io[0], readAt(2))
	r.w.Advance(time.Second)
	later := r.send(h.io[0], readAt(3))
	r.w.Advance(1500 * time.Millisecond)
	testutil.True(t, late.Done && late.CQE.Status()&^nvme.More == notReady && !later.Done,
		"after the timeout: %v %v, %v", late.Done, late.CQE.Status(), later.Done)
	r.must(x.end(dev, nil))
	r.until("the command continues", func() bool { return later.Done })
	testutil.Equal(t, later.CQE.Status(), nvme.Success, "")
	l := r.target.Stats()
	testutil.True(t, l[0].Ready && l[0].Timeouts != 0 && l[0].Orphans == 0, "%+v", l[0])
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
