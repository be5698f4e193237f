package target

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/wrap"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
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
	"keep alive":        func(r *harness, h *host) { r.target.find(testSub).lookup(h.cntlid).expire() },
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
		"the log says that the storage does not answer, which has not seen the command")
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

// TestConcealedForGood: where security is required, nothing says that there was a subsystem, or
// that a host was allowed.
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

// TestDiskFull: writes that fail for lack of space are counted by that reason. They are logged once
// with the details for operators, and once more after a minute.
func TestDiskFull(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 2)
	writes := func(n int) {
		t.Helper()
		for i := range n {
			r.status(h.io[i%2], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)),
				nvme.CapacityExceeded|nvme.DNR)
		}
	}
	lines := func() (list []string) {
		for l := range strings.Lines(r.log.String()) {
			if strings.Contains(l, "no space left") {
				list = append(list, l)
			}
		}
		return list
	}
	dev.Fail(func(io *backend.IO) error {
		if io.Op == backend.OpWrite {
			return fmt.Errorf("pwrite: %w", backend.ErrNoSpace)
		}
		return nil
	})
	writes(146)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	l := lines()
	testutil.MustTrue(t, len(l) == 1, "%d lines: %v", len(l), l)
	for _, want := range []string{"subsystem=" + testSub, "nsid=1", "device=ram", "command=write"} {
		testutil.True(t, strings.Contains(lines()[0], want), "%s is not in %s", want, lines()[0])
	}
	r.w.Advance(time.Minute)
	writes(1)
	l = lines()
	testutil.True(t, len(l) == 2, "%d lines after a minute: %v", len(l), l)
	for _, e := range []error{backend.ErrIO, backend.ErrReadOnly, backend.ErrOffline} {
		dev.Fail(func(*backend.IO) error { return e })
		c := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
		r.w.Advance(time.Duration(notReadyDelay))
		r.until("the write fails", func() bool { return c.Done })
	}
	got := r.target.Stats()[0].Errors
	maps.DeleteFunc(got, func(_ string, n uint64) bool { return n == 0 })
	want := map[string]uint64{"no_space": 147, "io": 1, "read_only": 1, "offline": 1}
	testutil.True(t, maps.Equal(got, want), "counted %v, want %v", got, want)
	names := slices.Sorted(maps.Keys(r.target.Stats()[0].Errors))
	testutil.True(t, len(names) == dispatch.ErrorKinds,
		"reasons that have not occurred are missing: %v", names)
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
