package target

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// testDrive is an admin.Drive that reports the log and the error of the test.
type testDrive struct {
	id     string
	counts bool

	mu  sync.Mutex
	log nvme.SMARTLog
	err error
}

func (d *testDrive) ID() string   { return d.id }
func (d *testDrive) Counts() bool { return d.counts }
func (d *testDrive) SMART() (*nvme.SMARTLog, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.log
	return &l, d.err
}

func (d *testDrive) set(fn func(l *nvme.SMARTLog), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn(&d.log)
	d.err = err
}

func u128(v uint64) nvme.Uint128 { return nvme.MakeUint128(v) }

// onDrives is a subsystem with a namespace on each of the drives; nil is one without.
func onDrives(t *testing.T, drives ...admin.Drive) subsystems.Config {
	sub := ramSubsystem(t, len(drives))
	for i, d := range drives {
		sub.Namespaces[i].Drive = d
	}
	return sub
}

// full is a log with a different value in each field.
func full(n uint8) nvme.SMARTLog {
	v := uint64(n) * 100
	l := nvme.SMARTLog{
		Temperature: 300 + uint16(n), AvailableSpare: 100 - n, SpareThreshold: 10,
		PercentageUsed: n, EnduranceWarnings: 1 << (n % 8),
		DataUnitsRead: u128(v + 1), DataUnitsWritten: u128(v + 2), HostReads: u128(v + 3),
		HostWrites: u128(v + 4), BusyTime: u128(v + 5),
		PowerCycles: u128(v + 6), PowerOnHours: u128(v + 7), UnsafeShutdowns: u128(v + 8),
		MediaErrors: u128(v + 9), ErrorLogEntries: u128(v + 10),
		WarningTempTime: uint32(v + 11), CriticalTempTime: uint32(v + 12),
		TemperatureSensor:  [8]uint16{uint16(n), 7: uint16(n)},
		ThermalTransitions: [2]uint32{uint32(v), uint32(v + 1)},
		ThermalTime:        [2]uint32{uint32(v + 2), uint32(v + 3)},
	}
	l.DataUnitsRead[15] = n // above 64 bits
	return l
}

// TestEventDuringSlowLog: an event is not lost if it happens while the target asks a drive for the
// health log. Reading that log ends the masking of the event.
func TestEventDuringSlowLog(t *testing.T) {
	d := hangingDrive{make(chan struct{}), make(chan struct{})}
	r, h := joined(t, 1, 1, onDrives(t, d))
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventReliability)))
	raise := func() {
		r.target.find(testSub).each(func(c *controller) {
			c.h.post(func() { c.Raise(admin.EventReliability) })
		})
		r.w.Settle()
	}
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	raise()
	testutil.MustTrue(t, aer.Done, "no event")
	aer = r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	log := r.send(h.admin, logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0))
	r.during(func() error {
		<-d.asked
		return nil
	})
	raise()
	close(d.release)
	r.until("the log is read", func() bool { return log.Done })
	r.w.Settle()
	testutil.True(t, aer.Done, "the event is lost")
}

// thinDevice reports that it takes its space as it is written.
type thinDevice struct {
	backend.Device
	used atomic.Int64 // negative: an error
	// If set, Space measures, sends on asked, and then waits for hang.
	asked, hang chan struct{}
}

func (d *thinDevice) Info() backend.Info {
	i := d.Device.Info()
	i.Thin = true
	return i
}

func (d *thinDevice) Space() (allocated, free int64, err error) {
	n := d.used.Load()
	if d.hang != nil {
		d.asked <- struct{}{}
		<-d.hang
	}
	if n >= 0 {
		return n, -1, nil
	}
	return 0, 0, errors.New("unknown")
}

// TestThin: hosts see how much of a thin namespace is in use; others, and one that does not know,
// do not look thin.
func TestThin(t *testing.T) {
	thin := &thinDevice{Device: ramDeviceOpen(t, 1<<20, 4096)}
	closeLast(t, thin)
	mute := struct{ backend.Device }{thin} // without Allocated
	sub := ramSubsystem(t, 1)
	sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: 2, Device: thin},
		namespaces.Config{NSID: 3, Device: mute})
	r, h := joined(t, 1, 0, sub)
	for _, tc := range []struct {
		nsid uint32
		used int64
		want uint64
		thin bool
	}{
		{2, 0, 0, true},
		{2, 3*4096 + 100, 3, true},
		{2, 2 << 20, 256, true},
		{2, -1, 256, false},
		{3, 4096, 256, false},
		{1, 4096, 2048, false},
	} {
		thin.used.Store(tc.used)
		id, err := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
			identifyCommand(nvme.CNSNamespace, tc.nsid)).Data)
		if err != nil || id.NUSE != tc.want || id.NSFEAT&nvme.NSFEATThin != 0 != tc.thin {
			t.Errorf("namespace %d with %d bytes: %v, NUSE %d, NSFEAT %#x", tc.nsid, tc.used, err,
				id.NUSE, id.NSFEAT)
		}
	}
}

// TestThinHangs: storage that does not say how much it stores holds up neither Identify for long
// nor the end of the controller, and there is one call however many commands ask.
func TestThinHangs(t *testing.T) { synctest.Test(t, testThinHangs) }

func testThinHangs(t *testing.T) {
	r, thin := thinHarness(t)
	defer close(thin.hang)
	space := r.target.find(testSub).Namespaces.Load().Get(1).Thin()
	givenUp := make(chan struct{})
	go func() {
		admin.AwaitAll([]admin.Asker{space})
		close(givenUp)
	}()
	<-thin.asked
	<-givenUp
	before := runtime.NumGoroutine()
	for range 5 {
		h := r.connectHost(0)
		for range 20 {
			id, err := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
				identifyCommand(nvme.CNSNamespace, 1)).Data)
			testutil.MustTrue(t, err == nil && id.NUSE == 256 && id.NSFEAT&nvme.NSFEATThin == 0,
				"%v, NUSE %d, NSFEAT %#x", err, id.NUSE, id.NSFEAT)
		}
		h.admin.HangUp()
		r.until("the controller has ended", func() bool { return r.target.Sessions() == 0 })
	}
	synctest.Wait()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
}

// TestInCapsuleDataIsCopied: a device gets a copy of data in the receive slots of a queue if its
// commands may be given up.
func TestInCapsuleDataIsCopied(t *testing.T) {
	dev := faultyDevice(t, 1<<20, 512)
	b := newBare(t, namespaces.Config{NSID: 1, Device: dev, Timeout: time.Second}, 32)
	arena := b.w.Reactors[0].Memory()
	b.h.memory = arena
	slot := bytes.Repeat([]byte{1}, 4096)
	send := func() {
		r := b.reqs[0]
		r.Reset()
		r.SQE = rw(nvme.NVMWrite, 1, 0, 8, nil).SQE
		r.HostLength, r.InCapsule = 4096, true
		b.h.Prepare([]*fabric.Request{r})
		r.Segs = append(r.Segs, mem.Segment{B: slot[:1000], Region: -1},
			mem.Segment{B: slot[1000:], Region: -1})
		b.h.Execute([]*fabric.Request{r})
	}
	free, done := arena.Available(), b.q.done
	send()
	testutil.MustTrue(t, b.q.done == done+1 && b.q.bad == 0 && arena.Available() == free,
		"%d done, %d failed, %d bytes taken", b.q.done-done, b.q.bad, free-arena.Available())
	dev.Hold(nil)
	send()
	b.w.Advance(3 * time.Second)
	testutil.MustTrue(t, b.q.done == done+2 && b.q.bad == 1, "%d done, %d failed", b.q.done-done,
		b.q.bad)
	clear(slot) // the next capsule
	dev.Release()
	b.w.Settle()
	testutil.True(t, arena.Available() == free, "%d bytes have not come back",
		free-arena.Available())
	c := backendtest.NewClient(t, dev, 4096)
	defer c.Close()
	got := c.Memory(0, 4096)
	c.MustDo(c.Read(0, got))
	testutil.True(t, bytes.Equal(got, bytes.Repeat([]byte{1}, 4096)),
		"the device wrote the data of a later capsule")
}

// TestCancelWithoutHandOver: a command that cannot be given up, because there is no memory for a
// copy of its in-capsule data, is canceled at least.
func TestCancelWithoutHandOver(t *testing.T) {
	b, dev, prepare := capsuleWrite(t)
	dev.HonorCancel()
	dev.Hold(nil)
	var all mem.Allocation
	b.h.memory.Alloc(&all, nil, b.h.memory.Max(nil))
	defer all.Free()
	r, done := prepare(), b.q.done
	b.h.Execute([]*fabric.Request{r})
	b.w.Advance(2 * time.Second)
	testutil.True(t, b.q.done == done+1 && dev.Held() == 0 && r.CQE.Status() == nvme.AbortRequested,
		"%d done, the device has %d, %v", b.q.done-done, dev.Held(), r.CQE.Status())
	dev.Release()
}

// TestIdentifyAfterWrite: Identify does not answer with the space that was in use before a write
// that had been completed when Identify was sent, although a call was running then.
func TestIdentifyAfterWrite(t *testing.T) { synctest.Test(t, testIdentifyAfterWrite) }

func testIdentifyAfterWrite(t *testing.T) {
	r, thin := thinHarness(t)
	h := r.connectHost(0)
	nuse := func(c *fabrictest.Command) uint64 {
		id, err := nvme.Parse[nvme.IdentifyNamespace](c.Data)
		r.must(err)
		return id.NUSE
	}
	early := r.send(h.admin, identifyCommand(nvme.CNSNamespace, 1))
	<-thin.asked // and has measured
	thin.used.Store(7 * 4096)
	late := r.send(h.admin, identifyCommand(nvme.CNSNamespace, 1))
	synctest.Wait()
	thin.hang <- struct{}{}
	<-thin.asked
	if r.w.Settle(); late.Done {
		t.Fatalf("NUSE %d of a call that began too early", nuse(late))
	}
	thin.hang <- struct{}{}
	r.until("both are answered", func() bool { return early.Done && late.Done })
	if a, b := nuse(early), nuse(late); a != 0 || b != 7 {
		t.Errorf("NUSE %d and %d, want 0 and 7", a, b)
	}
}

// TestManyWait: commands that wait for hanging storage take no goroutine each. After
// admin.AnswerWait they are answered from the known values. They leave nothing behind when their
// queue ends.
func TestManyWait(t *testing.T) { synctest.Test(t, testManyWait) }

func testManyWait(t *testing.T) {
	r, thin := thinHarness(t)
	defer close(thin.hang)
	q := r.target.find(testSub).Namespaces.Load().Get(1).Thin()
	var hosts []*host
	var commands []*fabrictest.Command
	connect := func(n int) {
		for range n {
			h := r.connectHost(0)
			hosts = append(hosts, h)
			for range 31 {
				commands = append(commands, r.send(h.admin, identifyCommand(nvme.CNSNamespace, 1)))
			}
		}
	}
	connect(1)
	<-thin.asked
	before := runtime.NumGoroutine()
	connect(63)
	if n := runtime.NumGoroutine(); n > before || q.Waiters() != len(commands) {
		t.Errorf("%d goroutines for %d commands, %d before; %d waiters", n, len(commands), before,
			q.Waiters())
	}
	for _, h := range hosts[:32] {
		h.hangUp()
	}
	r.until("half of the controllers have ended",
		func() bool { return len(r.target.Controllers()) == 32 })
	testutil.Equal(t, q.Waiters(), len(commands)/2, "waiters left")
	r.w.Advance(admin.AnswerWait)
	done := 0
	for range len(commands)/2/128 + 1 { // some of them in each step
		before := done
		done = 0
		for _, c := range commands[len(commands)/2:] {
			if c.Done {
				done++
			}
		}
		testutil.True(t, done-before <= 128, "%d are answered in one step", done-before)
		r.w.Advance(time.Millisecond)
	}
	for _, c := range commands[len(commands)/2:] {
		testutil.MustTrue(t, c.Done && c.CQE.Status().OK(), "answered %v, %v", c.Done,
			c.CQE.Status())
	}
	testutil.Equal(t, q.Waiters(), 0, "waiters left")
}

// TestDrivesAreAskedTogether: drives that do not answer hold up the health log of their subsystem,
// and the check of all drives, for admin.AnswerWait, not each of them for that long.
func TestDrivesAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drives []admin.Drive
		for range 3 {
			d := hangingDrive{make(chan struct{}), make(chan struct{})}
			defer close(d.release)
			drives = append(drives, d)
		}
		r, h := joined(t, 1, 0, onDrives(t, drives...))
		log := r.send(h.admin, logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0))
		synctest.Wait()
		r.w.Settle()
		start := time.Now()
		r.target.CheckHealth()
		for _, d := range drives {
			<-d.(hangingDrive).asked
		}
		testutil.Equal(t, time.Since(start), admin.AnswerWait, "checked for")
		r.w.Advance(admin.AnswerWait)
		r.until("the log is read", func() bool { return log.Done })
		testutil.True(t, log.CQE.Status().OK(), "the log is read: %v", log.CQE.Status())
	})
}

// thinHarness has a target with one namespace on thin storage. The storage answers when the test
// tells it to.
func thinHarness(t *testing.T) (*harness, *thinDevice) {
	thin := &thinDevice{
		Device: ramDeviceOpen(t, 1<<20, 4096),
		asked:  make(chan struct{}), hang: make(chan struct{}),
	}
	closeLast(t, thin)
	sub := ramSubsystem(t, 0)
	sub.Namespaces = []namespaces.Config{{NSID: 1, Device: thin}}
	return newHarness(t, 1, sub), thin
}

func selfTestCommand(code nvme.SelfTestCode, nsid uint32) *fabrictest.Command {
	c := command(nvme.AdminSelfTest, nsid, nil)
	c.SQE.SetCDW(10, uint32(code))
	return c
}

func (h *host) selfTestLog() *nvme.SelfTestLog {
	h.r.t.Helper()
	l, err := nvme.Parse[nvme.SelfTestLog](h.r.ok(h.admin,
		logCommand(nvme.LogSelfTest, nvme.SelfTestLogSize, 0)).Data)
	h.r.must(err)
	return l
}

// selfTestEnds lets time pass until the self-test has ended, and returns its result.
func (h *host) selfTestEnds() nvme.SelfTestResult {
	h.r.t.Helper()
	t := &h.r.target.find(testSub).Lookup(h.cntlid).SelfTest
	h.r.inTime("the self-test ends", func() bool { return t.Code == 0 })
	l := h.selfTestLog()
	testutil.True(h.r.t, l.Operation == 0 && l.Completion == 0, "operation %d, %d%%", l.Operation,
		l.Completion)
	return l.Results[0]
}

// inTime lets time pass until cond holds, and much slower while a device has a read of a self-test,
// since time stands still for the goroutine of a device that gets no CPU.
func (r *harness) inTime(what string, cond func() bool) {
	r.t.Helper()
	steps := 0
	r.until(what, func() bool {
		if steps++; steps%50 == 0 || !r.selfTestReads() {
			r.w.Advance(time.Millisecond)
		}
		r.w.Reactors[0].Wake()
		return cond()
	})
}

func (r *harness) selfTestReads() bool {
	reads := false
	r.target.find(testSub).each(func(c *controller) { reads = reads || c.selfTest.reading != 0 })
	return reads
}

// TestSelfTestSample: a short test reads some of a large namespace, from the first to the last
// chunk, at a bounded rate; an extended one reports how much of it is done.
func TestSelfTestSample(t *testing.T) {
	dev := testutil.Value(null.Open(null.Config{Size: 1<<40 + 512, BlockSize: 512}))(t)
	closeLast(t, dev)
	d := &recorder{Device: dev, info: func(*backend.Info) {}}
	r := newHarness(t, 1, subsystems.Config{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []namespaces.Config{{NSID: 1, Device: d}},
	})
	h := r.connectHost(0)
	if id := h.controller(); id.EDSTT != 280 { // a chunk of 128 KiB every 2 ms
		t.Errorf("EDSTT %d", id.EDSTT)
	}
	r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, 1))
	r.inTime("the first read", func() bool { return h.selfTestLog().Completion > 0 })
	before := len(d.take())
	r.w.Advance(100 * time.Millisecond)
	if n := len(d.take()); n < 90 || n > 100 {
		t.Errorf("%d reads in 100 ms", n)
	} else {
		before += n
	}
	if l := h.selfTestLog(); int(l.Completion) != before*100/1024 {
		t.Errorf("%d%% after %d of 1024 reads", l.Completion, before)
	}
	h.selfTestEnds()
	ios := d.take()
	if last := ios[len(ios)-1]; before+len(ios) != 1024 || last.Off != 1<<40 || last.Len != 512 {
		t.Errorf("%d reads, the last one %+v", before+len(ios), last)
	}
}

// TestSelfTestOfHangingDevice: a self-test with a read that does not come back can be aborted. The
// next self-test goes on when the read comes back. Nothing stays when the host is gone.
func TestSelfTestOfHangingDevice(t *testing.T) {
	r, h, dev := onFaulty(t, 1, 0)
	hang := func() {
		t.Helper()
		dev.Hold(nil)
		r.ok(h.admin, selfTestCommand(nvme.SelfTestExtended, 1))
		r.inTime("a read is held", func() bool { return dev.Held() == 1 })
	}
	hang()
	r.ok(h.admin, selfTestCommand(nvme.SelfTestAbort, 0))
	r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, 1))
	r.w.Advance(time.Second)
	testutil.Equal(t, dev.Held(), 1, "reads are held")
	dev.Release()
	if got := h.selfTestEnds(); got.DSTS != 0x10 || h.selfTestLog().Results[1].DSTS != 0x21 {
		t.Errorf("result %#x", got.DSTS)
	}
	if n := r.target.Stats()[0].Reads; n != 9 { // one of the first test, all of the second
		t.Errorf("%d reads", n)
	}
	hang()
	h.hangUp()
	r.w.Settle()
	testutil.Equal(t, r.target.Sessions(), 1, "sessions while the device has the read")
	dev.Release()
	r.until("the controller is gone", func() bool { return len(r.target.Controllers()) == 0 })
}

// TestSelfTestTimesOut: a device that does not answer in time fails the test.
func TestSelfTestTimesOut(t *testing.T) {
	sub, dev := faultySubsystem(t)
	sub.Namespaces[0].Timeout = time.Second
	r, h := joined(t, 1, 0, sub)
	dev.Hold(nil)
	r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, 1))
	got := h.selfTestEnds()
	testutil.True(t, got.DSTS == 0x17 && nvme.Status(got.SCT)<<8|nvme.Status(got.SC) == notReady,
		"%+v", got)
	dev.Release()
	r.until("the device answers again", func() bool { return r.target.Stats()[0].Ready })
}

// changing is a device with a description that tests change.
type changing struct {
	backend.Device
	i      backend.Info
	notify func()
}

func (d *changing) Info() backend.Info { return d.i }
func (d *changing) Notify(fn func())   { d.notify = fn }

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
	testutil.Receive(t, "a question", d.asked)
	s := r.target.Stats()[0]
	testutil.True(t, s.Drive.Answered.IsZero() && s.Health.Temperature == 0 &&
		s.Health.AvailableSpare == 100, "%+v, %+v", s.Drive, s.Health)
	close(d.release)
	testutil.Receive(t, "the answer", checked)
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
