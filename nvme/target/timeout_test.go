package target

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// ranges multiplies the timeout of discards and zeroes.
const ranges = 10

// hangingSubsystem has namespace 1 on a device that tests may hold, with a timeout of two seconds,
// and namespace 2 in memory.
func hangingSubsystem(t *testing.T) (SubsystemConfig, *backendtest.Faulty) {
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

// everyIOs is how many IOs the device gets of everyCommand: one of them deallocates two ranges.
var everyIOs = len(everyCommand()) + 1

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

// hang is a device that does not answer, the host of its namespace, and the commands it has.
type hang struct {
	*harness
	dev  *backendtest.Faulty
	h    *host
	all  []*fabrictest.Command
	free int // bytes in the arena before
}

// TestHangingDevice: commands complete although their device does not answer, which keeps their
// memory; the namespace is not ready on any reactor until everything is back; nothing else is
// affected.
func TestHangingDevice(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	r := newHarness(t, 3, sub)
	x := &hang{harness: r, dev: dev, h: r.connectHost(3), all: everyCommand()}
	q := x.h.io[0]
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.ok(x.h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
	aer := r.send(x.h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	dev.Hold(nil)
	x.free = r.w.Reactors[1].Memory().Available()
	for _, c := range x.all {
		r.send(q, c)
	}
	r.until("the device has everything", func() bool { return dev.Held() == everyIOs })
	x.givenUp()
	testutil.True(t, aer.Done && nvme.AsyncEvent(aer.CQE.DW0()) == nvme.AsyncNamespaceChanged,
		"hosts were not notified")
	x.refused()
	x.comesBack()
	for _, want := range []string{"does not answer", "answers again"} {
		testutil.True(t, strings.Count(r.log.String(), want) == 1,
			"the log does not say once %q:\n%s", want, r.log)
	}
}

// givenUp lets the commands time out.
func (x *hang) givenUp() {
	x.t.Helper()
	x.w.Advance(1900 * time.Millisecond)
	for _, c := range x.all {
		if c.Done {
			x.t.Fatalf("opcode %#x was given up early", c.SQE.Opcode())
		}
	}
	abort := command(nvme.AdminAbort, 0, nil)
	abort.SQE.Abort().Set(1, x.all[0].SQE.CID())
	if c := x.ok(x.h.admin, abort); c.CQE.DW0() != nvme.AbortNotDone {
		x.t.Errorf("Abort of what a device has: %#x", c.CQE.DW0())
	}
	x.w.Advance(time.Second)
	for _, c := range x.all {
		ranges := c.SQE.Opcode() == nvme.NVMWriteZeroes ||
			c.SQE.Opcode() == nvme.NVMDatasetManagement
		if c.Done == ranges {
			x.t.Errorf("after the timeout: opcode %#x: done %v", c.SQE.Opcode(), c.Done)
		}
	}
	x.w.Advance(2 * time.Second * (ranges - 1))
	for _, c := range x.all {
		if st := c.CQE.Status() &^ nvme.More; !c.Done || st != notReady {
			x.t.Errorf("opcode %#x: done %v, %v", c.SQE.Opcode(), c.Done, st)
		}
	}
	testutil.Equal(x.t, x.free-x.w.Reactors[1].Memory().Available(), 4096+32768+4096+8192+12288,
		"bytes are left to the device")
}

// refused: while the device has commands, its namespace accepts none, and other namespaces do.
func (x *hang) refused() {
	x.t.Helper()
	testutil.True(x.t, x.nstat(x.h)&nvme.NSTATReady == 0, "the namespace is shown as ready")
	for _, q := range x.h.io {
		for _, c := range everyCommand() {
			x.notReady(q, c)
		}
		x.ok(q, rw(nvme.NVMRead, 2, 0, 1, make([]byte, 512)))
	}
	testutil.Equal(x.t, x.dev.Held(), everyIOs, "a device that hangs was given more: it")
	testutil.EqualSlices(x.t, x.conditions(), []condition{
		{nsid: 1, timeouts: uint64(len(x.all)), orphans: everyIOs}, {nsid: 2, ready: true},
	}, "")
}

// comesBack: the device answers.
func (x *hang) comesBack() {
	x.t.Helper()
	x.ok(x.h.admin, logCommand(nvme.LogChangedNamespaces, 4096, 0))
	aer := x.send(x.h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	x.dev.Release()
	x.until("hosts are notified again", func() bool { return aer.Done })
	testutil.True(x.t, x.nstat(x.h)&nvme.NSTATReady != 0, "the namespace is not shown as ready")
	if n := x.w.Reactors[1].Memory().Available(); n != x.free {
		x.t.Errorf("%d bytes have not come back", x.free-n)
	}
	want := condition{nsid: 1, ready: true, timeouts: uint64(len(x.all)), returns: 1}
	testutil.Equal(x.t, x.conditions()[0], want, "")
	read := x.ok(x.h.io[1], rw(nvme.NVMRead, 1, 64, 64, make([]byte, 32768)))
	testutil.True(x.t, bytes.Equal(read.Data, x.all[1].Data),
		"the data of a write that was given up and carried out later is wrong")
	for _, c := range everyCommand() {
		x.ok(x.h.io[0], c)
	}
}

// condition is the condition of a namespace, without its counters.
type condition struct {
	nsid              uint32
	ready             bool
	timeouts, returns uint64
	orphans           int
}

// conditions returns the conditions of all namespaces.
func (r *harness) conditions() (list []condition) {
	for _, s := range r.target.Stats() {
		list = append(list, condition{s.NSID, s.Ready, s.Timeouts, s.Returns, s.Orphans})
	}
	return list
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
