package target

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/wrap"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// ends are the ways in which a controller stops serving while its I/O queues still exist.
var ends = map[string]func(r *harness, h *host){
	"reset": func(r *harness, h *host) { r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0)) },
	"shutdown": func(r *harness, h *host) {
		r.ok(h.admin,
			propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
	},
	"admin queue ended": func(_ *harness, h *host) { h.admin.HangUp() },
	"failed": func(r *harness,
		h *host,
	) {
		r.target.find(testSub).lookup(h.cntlid).fail(errors.New("test"))
	},
	"keep alive": func(r *harness, h *host) {
		r.target.find(testSub).lookup(h.cntlid).expire()
	},
	"subsystem removed": func(r *harness, _ *host) { r.removeSubsystem() },
	"target closed":     func(r *harness, _ *host) { r.during(r.target.Close) },
}

// expire makes the keep alive timer expire.
func (c *controller) expire() {
	c.alive.Check(c.h.loop.Now(), c.traffic(), true)
	c.alive.Start(1000, false, c.h.loop.Now()-1e9, c.traffic())
	c.checkKeepAlive()
}

// ending returns a host with an I/O queue. The device holds a command of the queue, so the
// controller cannot be removed before release is called.
func ending(t *testing.T) (r *harness, h *host, release func()) {
	t.Helper()
	sub, dev := faultySubsystem(t)
	r = newHarness(t, 2, sub)
	h = r.connectHost(1)
	dev.Hold(nil)
	r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	return r, h, dev.Release
}

// TestConnectToEndingController: an I/O queue is not added to a controller that is ending (F17).
// DNR is not set, so the host may retry.
func TestConnectToEndingController(t *testing.T) {
	for name, end := range ends {
		if name == "subsystem removed" || name == "target closed" {
			continue // these wait for the device
		}
		t.Run(name, func(t *testing.T) {
			r, h, release := ending(t)
			end(r, h)
			c := r.do(r.dial(1), h.ioArgs(2).command())
			testutil.Equal(t, c.CQE.Status(), nvme.ConnectInvalidParameters, "I/O Connect")
			release()
			r.w.Settle()
			if name != "reset" && name != "shutdown" {
				// and when it has been removed
				r.status(r.dial(1), h.ioArgs(1).command(), nvme.ConnectInvalidParameters)
			}
			fresh := r.connectHost(1)
			r.ok(fresh.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		})
	}
}

// TestIOToEndingController: a command does not reach the device if its controller has failed
// (CSTS.CFS, Q04), is reset or shut down, or if the subsystem was removed (Q05). It is refused with
// a status after which the host retries.
func TestIOToEndingController(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r, h, dev := onFaulty(t, 2, 1)
			r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			dev.Hold(nil)
			defer dev.Release()
			end(r, h)
			late := []*fabrictest.Command{
				rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)),
				rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), command(nvme.NVMFlush, 1, nil),
			}
			for _, c := range late {
				closed := h.io[0].Closed()
				r.send(h.io[0], c)
				if st := c.CQE.Status() &^ nvme.More; !closed &&
					(!c.Done || st != nvme.CommandSequenceError) {
					t.Errorf("opcode %#x: done %v, %v, want %v", c.SQE.Opcode(), c.Done, st,
						nvme.CommandSequenceError)
				}
			}
			r.w.Settle()
			testutil.Equal(t, dev.Held(), 0, "commands reached the device")
			testutil.True(t, h.io[0].Closed(), "the I/O queue is still open")
		})
	}
}

// TestEventRequestsAtTheEnd: outstanding Asynchronous Event Requests complete however the
// controller ends, and do not delay that.
func TestEventRequestsAtTheEnd(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r, h := joined(t, 2, 1, ramSubsystem(t, 1))
			var requests []*fabrictest.Command
			for range asyncLimit {
				requests = append(requests,
					r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil)))
			}
			end(r, h)
			r.w.Settle()
			// the association continues, and the requests complete with a reset
			if name == "shutdown" {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
				r.w.Settle()
			}
			testutil.Equal(t, h.admin.Outstanding(), 0, "requests did not come back")
			for i, c := range requests {
				testutil.True(t, !c.Done || c.CQE.Status() == nvme.AbortRequested,
					"request %d: %v, want %v", i, c.CQE.Status(), nvme.AbortRequested)
			}
		})
	}
}

// TestNamespaceReplacedWhileDataMoves: a write that was validated for one namespace never reaches
// its successor with the same identifier and the same slot, however slowly the data arrives.
func TestNamespaceReplacedWhileDataMoves(t *testing.T) {
	next := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 1<<20, 512)}, 32)
	slow, data := b.reqs[:1], make([]byte, 4096)
	b.reqs = b.reqs[1:2]
	slow[0].SQE, slow[0].HostLength = rw(nvme.NVMWrite, 1, 0, 8, nil).SQE, 4096
	b.h.Prepare(slow)
	testutil.MustTrue(t, slow[0].Length == 4096, "prepared %d bytes, %v", slow[0].Length,
		slow[0].Status)
	gone, err := b.h.t.RemoveNamespace(testSub, 1)
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(untilGone(b.w, gone),
		b.h.t.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: next})))
	b.run(nvme.NVMRead, 1, data) // opens the channel of the new namespace
	completed := b.q.done
	testutil.Must(t, b.w.Until(func() bool { return b.q.done > completed }))
	slow[0].Segs = append(slow[0].Segs, mem.Segment{B: data})
	b.h.Execute(slow)
	st := slow[0].CQE.Status() &^ nvme.More
	testutil.True(t, st == inactiveNamespace && b.q.bad == 1, "%v, %d refused", st, b.q.bad)
	for _, io := range next.take() {
		testutil.True(t, io.Op != backend.OpWrite, "the new namespace was written")
	}
}

// TestQueueEndsUnderIO: commands come back to the ended queue when the device has completed them,
// exactly once, and then the session ends.
func TestQueueEndsUnderIO(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 1)
	dev.Hold(nil)
	for i := range 16 {
		r.send(h.io[0], rw(nvme.NVMWrite, 1, uint64(i), 1, make([]byte, 512)))
	}
	r.until("the device has the IOs", func() bool { return dev.Held() == 16 })
	h.io[0].HangUp()
	r.w.Settle()
	testutil.Equal(t, h.io[0].Outstanding(), 16,
		"outstanding, want 16: the device still uses their memory")
	testutil.Equal(t, r.target.Sessions(), 2, "sessions")
	dev.Release()
	r.until("the session ends", func() bool { return r.target.Sessions() == 1 })
	testutil.Equal(t, h.io[0].Outstanding(), 0, "did not come back")
}

// TestQueueEndsBeforeSubmit: commands that the device has not seen when their queue ends are never
// carried out and come back at once. Commands of other queues keep their place.
func TestQueueEndsBeforeSubmit(t *testing.T) {
	r, h, dev := onFaulty(t, 1, 2)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Full(true)
	ones := bytes.Repeat([]byte{1}, 512)
	for range 3 {
		r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, ones))
	}
	r.send(h.io[0], dsm(1, true, [2]uint64{1, 1}, [2]uint64{2, 1}))
	stays := r.send(h.io[1], rw(nvme.NVMWrite, 1, 1, 1, ones))
	h.io[0].HangUp()
	r.w.Step()
	testutil.Equal(t, h.io[0].Outstanding(), 0, "commands did not come back")
	dev.Full(false)
	r.until("the other queue's write completes", func() bool { return stays.Done })
	got := r.ok(h.io[1], rw(nvme.NVMRead, 1, 0, 2, make([]byte, 1024)))
	testutil.True(t, bytes.Equal(got.Data, append(make([]byte, 512), ones...)),
		"a write of the ended queue was carried out, or the other one was not")
}

// delayedWrites returns a subsystem with writes that reach the storage after a latency.
func delayedWrites(t *testing.T, latency time.Duration) SubsystemConfig {
	dev := wrap.Delay(ramDeviceOpen(t, 1<<20, 512),
		wrap.DelayConfig{Latency: latency, Ops: []backend.Op{backend.OpWrite}})
	closeLast(t, dev)
	return SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []namespaces.Config{{NSID: 1, Device: dev, Timeout: time.Hour}},
	}
}

// TestNoLateWrites: a write that waits before its storage when its queue ends does not happen after
// a later one of another queue.
func TestNoLateWrites(t *testing.T) {
	r, h := joined(t, 1, 2, delayedWrites(t, 300*time.Millisecond))
	ones := bytes.Repeat([]byte{1}, 512)
	r.ok(h.io[1], command(nvme.NVMWriteZeroes, 1, nil)) // opens the channel
	r.send(h.io[0], rw(nvme.NVMWrite, 1, 8, 1, ones))
	h.io[0].HangUp()
	r.w.Step()
	testutil.Equal(t, h.io[0].Outstanding(), 0, "commands did not come back")
	r.ok(h.io[1], rw(nvme.NVMWriteZeroes, 1, 8, 1, nil))
	r.ok(h.io[1], rw(nvme.NVMWrite, 1, 0, 1, ones)) // until all that waited before is due
	got := r.ok(h.io[1], rw(nvme.NVMRead, 1, 8, 1, make([]byte, 512)))
	testutil.True(t, bytes.Equal(got.Data, make([]byte, 512)),
		"a write of a queue that had ended replaced a later one")
}

// TestAbortDelayed: a command that waits before its storage is aborted by Abort and by its timeout.
func TestAbortDelayed(t *testing.T) {
	sub := delayedWrites(t, time.Hour)
	sub.Namespaces[0].Timeout = 2 * time.Second
	r, h := joined(t, 1, 1, sub)
	q := h.io[0]
	r.ok(q, rw(nvme.NVMWriteZeroes, 1, 0, 1, nil)) // opens the channel
	write := func() *fabrictest.Command {
		return r.send(q, rw(nvme.NVMWrite, 1, 0, 8, bytes.Repeat([]byte{1}, 4096)))
	}
	c := write()
	a := r.ok(h.admin, abortCommand(1, c.SQE.CID()))
	testutil.True(t, a.CQE.DW0() == 0 && c.Done && c.CQE.Status() == nvme.AbortRequested,
		"result %d, done %v, %v", a.CQE.DW0(), c.Done, c.CQE.Status())
	c = write()
	r.w.Advance(3 * time.Second)
	st := c.CQE.Status() &^ nvme.More
	testutil.True(t, c.Done && st == notReady, "after the timeout: done %v, %v", c.Done, st)
	l := r.target.Stats()
	testutil.True(t, l[0].Ready && l[0].Orphans == 0 && l[0].Timeouts == 1, "%+v", l[0])
	testutil.True(t, !strings.Contains(r.log.String(), "answer"),
		"the log says that the storage does not answer, which has not seen the command")
}
