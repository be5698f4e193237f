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

func hangingHarness(t *testing.T, reactors int) (*harness, *backendtest.Faulty) {
	sub, dev := hangingSubsystem(t)
	return newHarness(t, reactors, sub), dev
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
			if !h.delayed.Empty() {
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

// TestTimeoutElsewhere: an operation of a device that another machine takes over is given up early.
// Hosts that connect afterwards have a path to its namespace, or Linux would not wait for it.
func TestTimeoutElsewhere(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	shared := &changing{Device: dev, i: dev.Info()}
	sub.Namespaces[0].Device = shared
	r, h := joined(t, 1, 1, sub)
	dev.Hold(nil)
	c := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 8, make([]byte, 4096)))
	r.until("the device has it", func() bool { return dev.Held() == 1 })
	shared.set(func(i *backend.Info) { i.Offline, i.Elsewhere = true, true })
	r.w.Advance(1500 * time.Millisecond)
	st := c.CQE.Status() &^ nvme.More
	testutil.True(t, c.Done && st == notReady, "done %v, %v", c.Done, st)
	dev.Release()
	r.w.Settle()
	for _, standby := range []bool{false, true} {
		shared.set(func(i *backend.Info) { i.Standby = standby })
		testutil.Equal(t, r.nstat(h)&nvme.NSTATReady != 0, standby, "ready")
		testutil.True(t, !r.target.Stats()[0].Ready, "the storage is ready")
	}
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
	r, dev := hangingHarness(t, 1)
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
