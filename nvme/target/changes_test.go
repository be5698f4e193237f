package target

import (
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// changing is a device with a description that tests change.
type changing struct {
	backend.Device
	i      backend.Info
	notify func()
}

func (d *changing) Info() backend.Info { return d.i }
func (d *changing) Notify(fn func())   { d.notify = fn }
func (d *changing) set(fn func(*backend.Info)) {
	fn(&d.i)
	d.notify()
}

// late is a device that changes while it is added, just before it is given the function to call.
type late struct {
	backend.Device
	change  func(*backend.Info)
	changed atomic.Bool
}

func (d *late) Notify(func()) { d.changed.Store(true) }

func (d *late) Info() backend.Info {
	info := d.Device.Info()
	if d.changed.Load() {
		d.change(&info)
	}
	return info
}

// TestChangeWhileAdded: a change between the first look at a device and Notify is not missed.
func TestChangeWhileAdded(t *testing.T) {
	shrunk := &late{Device: ramDevice(t, 1<<20, 512), change: func(i *backend.Info) { i.Size /= 2 }}
	offline := &late{
		Device: ramDevice(t, 1<<20, 512), change: func(i *backend.Info) { i.Offline = true },
	}
	r := newHarness(t, 1, subsystemOf(testSub, shrunk, offline))
	n := r.connectHost(0).namespace(1).NSZE
	testutil.True(t, n == 1024, "the namespace has %d blocks, want 1024", n)
	l := r.target.Stats()
	testutil.True(t, l[0].Ready && !l[1].Ready, "%+v", l)
}

// watched is a device that calls a function when the notifications of its changes begin.
type watched struct {
	backend.Device
	begin func()
}

func (d *watched) Notify(fn func()) {
	if fn != nil && d.begin != nil {
		d.begin()
	}
}

// TestHiddenAndRemoved: a host that may no longer use a namespace is told so, also if the namespace
// is removed meanwhile. The removal is told to the hosts that may use it until then.
func TestHiddenAndRemoved(t *testing.T) {
	dev := &watched{Device: ramDevice(t, 1<<20, 512)}
	r := newHarness(t, 1, subsystemOf(testSub, dev))
	loses, keeps := r.connectHost(0), r.connectOther()
	var events []*fabrictest.Command
	for _, h := range []*host{loses, keeps} {
		r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
		events = append(events, r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil)))
	}
	var removed error
	dev.begin = func() { _, removed = r.target.RemoveNamespace(testSub, 1) }
	cfg := namespaces.Config{NSID: 1, Hosts: []string{otherHost}}
	r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	r.must(removed)
	r.w.Settle()
	testutil.True(t, events[0].Done && events[1].Done, "told: %v, %v", events[0].Done,
		events[1].Done)
}

// TestStats: the counters, the state and the health of namespaces.
func TestStats(t *testing.T) {
	nvmeDrive := &testDrive{id: "a", counts: true, log: full(1)}
	sata := &testDrive{id: "sata", log: nvme.SMARTLog{Temperature: 310, AvailableSpare: 100}}
	r, h := joined(t, 1, 1, onDrives(t, nvmeDrive, sata, nil))
	for range 3 {
		r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 2, make([]byte, 1024)))
	}
	r.ok(h.io[0], rw(nvme.NVMWrite, 2, 0, 4, make([]byte, 2048)))
	r.ok(h.io[0], command(nvme.NVMFlush, 2, nil))
	for range 2 {
		r.ok(h.io[0], rw(nvme.NVMWriteZeroes, 2, 0, 4, nil))
	}
	r.ok(h.io[0], dsm(2, true, [2]uint64{0, 1}, [2]uint64{4, 1}, [2]uint64{8, 0}, [2]uint64{9, 2}))
	for _, s := range r.target.Stats() {
		testutil.True(t, s.Drive == nil || s.Drive.Answered.IsZero(),
			"the drive of namespace %d was asked", s.NSID)
	}

	r.target.CheckHealth()
	list := r.target.Stats()
	testutil.MustTrue(t, len(list) == 3, "%+v", list)
	a, b, c := list[0], list[1], list[2]
	testutil.True(t, a.NSID == 1 && a.Drive.Counts && a.Drive.ID == "a" &&
		!a.Drive.Answered.IsZero() && *a.Health == full(1), "a drive: %+v, %+v, %+v", a, a.Drive,
		a.Health)
	testutil.True(t, b.Reads == 3 && b.ReadBytes == 3072 && b.Writes == 1 &&
		b.WrittenBytes == 2048 && b.BlockSizeBytes == 512 && b.SizeBytes != 0 && b.Ready,
		"counters: %+v", b)
	testutil.True(t, b.Flushes == 1 && b.WriteZeroes == 2 && b.Discards == 3 && c.Flushes == 0,
		"counters: %+v, another namespace: %+v", b, c)
	testutil.True(t, b.Health.HostReads == u128(3) && b.Health.Temperature == 310,
		"the drive does not count: %+v", b.Health)
	testutil.True(t, c.Drive == nil && c.Health.CriticalWarning == 0 && !c.Degraded &&
		!c.WriteProtected, "no drive: %+v, %+v", c, c.Health)

	ns := r.target.find(testSub).Namespaces.Load().Get(3)
	r.raw[0].channelTo(ns).failed(&backend.IO{Err: backend.ErrDegraded})
	if c := r.target.Stats()[2]; !c.Degraded || !c.WriteProtected ||
		c.Health.CriticalWarning != nvme.SMARTReliability|nvme.SMARTReadOnly {
		t.Errorf("degraded: %+v, %+v", c, c.Health)
	}
}

// hangingDrive does not answer until it is released.
type hangingDrive struct{ asked, release chan struct{} }

func (d hangingDrive) ID() string   { return "hangs" }
func (d hangingDrive) Counts() bool { return true }
func (d hangingDrive) SMART() (*nvme.SMARTLog, error) {
	close(d.asked)
	<-d.release
	return &nvme.SMARTLog{Temperature: 300}, nil
}

// TestStatsWaitForNoDrive: Stats does not wait for a drive that does not answer. It returns the
// values known without it.
func TestStatsWaitForNoDrive(t *testing.T) {
	d := hangingDrive{make(chan struct{}), make(chan struct{})}
	r := newHarness(t, 1, onDrives(t, d))
	checked := make(chan struct{})
	go func() {
		r.target.CheckHealth()
		close(checked)
	}()
	<-d.asked
	s := r.target.Stats()[0]
	testutil.True(t, s.Drive.Answered.IsZero() && s.Health.Temperature == 0 &&
		s.Health.AvailableSpare == 100, "%+v, %+v", s.Drive, s.Health)
	close(d.release)
	<-checked
	if s := r.target.Stats()[0]; s.Drive.Answered.IsZero() || s.Health.Temperature != 300 {
		t.Errorf("%+v, %+v", s.Drive, s.Health)
	}
}

// TestPairWithoutMemory: a pair that waits for memory, which its host may have used up, keeps no
// write of another host waiting, and no other pair.
func TestPairWithoutMemory(t *testing.T) {
	r, h := joined(t, 3, 2, ramSubsystem(t, 1))
	a, b := h.io[0], h.io[1] // on different reactors
	zero, one, two := fill(0, 512), fill(1, 512), fill(2, 512)
	r.ok(a, rw(nvme.NVMRead, 1, 0, 1, zero))
	pool := r.w.Reactors[1].Memory()
	free := r.exhaust(pool)
	p := pairOf(8, two, one)
	for _, c := range p {
		c.InCapsule = true
	}
	r.must(a.Send(p...))
	r.until("the pair waits", pool.HasWaiters)
	r.ok(b, rw(nvme.NVMWrite, 1, 8, 1, one))
	other := pairOf(8, one, two)
	r.must(b.Send(other...))
	r.until("another pair is carried out", func() bool { return other[1].Done })
	free()
	pool.Serve()
	r.until("the pair goes on", func() bool { return p[1].Done })
	r.allDone(append(p, other...), nvme.Success)
}

// TestDataWaitsForMemory: commands with data of their host get memory for their reads even if data
// of other commands has all memory that the host may have. Otherwise all would wait for each other.
func TestDataWaitsForMemory(t *testing.T) {
	r, h := joined(t, 2, 1, copySubsystem(t))
	q, pool := h.io[0], r.w.Reactors[1].Memory()
	r.ok(q, rw(nvme.NVMWrite, 1, 0, 8, fill(1, 4096)))
	ns := r.target.find(testSub).Namespaces.Load().Get(1)
	flow := &r.raw[1].shares.Hosts[testKey].Flows[ns.Slot].Flow
	for {
		a := new(mem.Allocation)
		if !pool.Alloc(a, flow, 4096) {
			break
		}
		defer a.Free()
	}
	for name, c := range map[string]*fabrictest.Command{
		"compare": rw(nvme.NVMCompare, 1, 0, 8, fill(1, 4096)),
		"copy":    copyTo(16, nvme.CopyRanges, source{1, 0, 8}),
	} {
		c.InCapsule = true
		r.send(q, c)
		r.w.Settle()
		testutil.True(t, c.Done && c.CQE.Status().OK(), "%s: done %v, %v", name, c.Done,
			c.CQE.Status())
	}
}
