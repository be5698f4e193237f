package target

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/wrap"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
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

// ends are the ways in which a controller stops serving while its I/O queues still exist.
var ends = map[string]func(r *harness, h *host){
	"reset": func(r *harness, h *host) { r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0)) },
	"shutdown": func(r *harness, h *host) {
		r.ok(h.admin,
			propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
	},
	"admin queue ended": func(_ *harness, h *host) { h.admin.HangUp() },
	"failed": func(r *harness, h *host) {
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

// delayedWrites returns a subsystem with writes that reach the storage after a latency.
func delayedWrites(t *testing.T, latency time.Duration) subsystems.Config {
	dev := wrap.Delay(ramDeviceOpen(t, 1<<20, 512),
		wrap.DelayConfig{Latency: latency, Ops: []backend.Op{backend.OpWrite}})
	closeLast(t, dev)
	return subsystems.Config{
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
		"the log blames the storage, which has not seen the command")
}

const (
	notHere = refusedStatus
	forGood = refusedStatus | nvme.DNR
)

// TestChangedMeanwhile: no refusal is final if a change ends, or begins, after Connect has begun:
// the missing host or subsystem may be back.
func TestChangedMeanwhile(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, Hosts: []string{otherHost}},
		subsystems.Config{NQN: testSub + "2", AllowAnyHost: true})
	r.remove(func() (<-chan struct{}, error) { return r.target.RemoveSubsystem(testSub+"2", true) })
	for nqn, want := range map[string]nvme.Status{
		testSub: nvme.ConnectInvalidHost, testSub + "2": notHere,
	} {
		connect := func(meanwhile func(), want nvme.Status) {
			t.Helper()
			qi := info(nvme.TransportTCP)
			qi.TLS = &fabric.TLS{HostNQN: testHost, SubNQN: nqn, Counts: func() bool {
				meanwhile()
				return true
			}}
			r.status(r.dialInfo(0, qi), adminArgs(nqn).command(), want)
		}
		connect(func() {}, want|nvme.DNR)
		connect(r.target.Changing(), want)
		connect(func() { r.target.Changing()() }, want)
		connect(func() {}, want|nvme.DNR)
	}
}

// TestConcealedForGood: where security is required, no answer reveals that there was a subsystem,
// or that a host was allowed.
func TestConcealedForGood(t *testing.T) {
	r := securityHarness(t, subsystems.SecurityAuth)
	outcome := func(what string) {
		t.Helper()
		got, _ := r.attempt(testSub, testHost, hostSecret)
		testutil.Equal(t, got, fmt.Sprintf("%v %#x", notHere, nothingThere), "%s", what)
	}
	r.must(untilGone(r.w, r.update(func(c *subsystems.Config) {
		c.AllowAnyHost, c.Hosts, c.Security = false, []string{keylessHost}, subsystems.SecurityAuth
	})))
	outcome("the host is removed")
	r.removeSubsystem()
	outcome("the subsystem is removed")
}

// sparse is a thin device that knows its free space.
type sparse struct {
	thinDevice
	err error
}

func (d *sparse) Space() (allocated, free int64, err error) {
	allocated, free, err = d.thinDevice.Space()
	if d.err == nil {
		free = 3 << 30
	}
	return allocated, free, err
}

// TestSpace: the space of thin namespaces is measured by CheckHealth, and unknown otherwise.
func TestSpace(t *testing.T) {
	dev := &sparse{thinDevice: thinDevice{Device: ramDevice(t, 1<<20, 512)}}
	dev.used.Store(5000)
	r := newHarness(t, 1, subsystemOf(testSub, dev, ramDevice(t, 1<<20, 512)))
	check := func(when string, allocated, free int64) {
		t.Helper()
		s := r.target.Stats()
		testutil.True(t, s[0].Allocated == allocated && s[0].Free == free,
			"%s: %d bytes allocated, %d free", when, s[0].Allocated, s[0].Free)
		testutil.True(t, s[1].Allocated == -1 && s[1].Free == -1,
			"%s: a namespace that is not thin: %d, %d", when, s[1].Allocated, s[1].Free)
	}
	check("before", -1, -1)
	r.target.CheckHealth()
	check("measured", 5000, 3<<30)
	dev.err = backend.ErrOffline
	r.target.CheckHealth()
	check("the file system does not answer", 5000, -1)
	dev.used.Store(-1)
	r.target.CheckHealth()
	check("offline", -1, -1)
}
