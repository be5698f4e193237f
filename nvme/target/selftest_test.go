package target

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

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

func (r *harness) smart(h *host, nsid uint32) nvme.SMARTLog {
	r.t.Helper()
	c := logCommand(nvme.LogSMART, 512, 0)
	c.SQE.SetNSID(nsid)
	l := testutil.Value(nvme.Parse[nvme.SMARTLog](r.ok(h.admin, c).Data))(r.t)
	return *l
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

// TestDriveHealth: the log of one drive is the drive's own, independent of reads through the
// target. The log of several drives has the sums and the worst values.
func TestDriveHealth(t *testing.T) {
	a, b := &testDrive{id: "a", counts: true, log: full(1)},
		&testDrive{id: "b", counts: true, log: full(2)}
	b.log.CriticalWarning = nvme.SMARTSpareLow
	r, h := joined(t, 1, 1, onDrives(t, a, a, b))
	for range 3 {
		r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	}
	for nsid, want := range map[uint32]nvme.SMARTLog{1: a.log, 2: a.log, 3: b.log} {
		l := r.smart(h, nsid)
		testutil.True(t, l == want, "namespace %d: %+v\nwant %+v", nsid, l, want)
	}
	want := full(2) // the worst values; the loop adds up the counts
	want.CriticalWarning, want.EnduranceWarnings = nvme.SMARTSpareLow, 2|4
	for _, sum := range []struct{ to, a *nvme.Uint128 }{
		{&want.DataUnitsRead, &a.log.DataUnitsRead},
		{&want.DataUnitsWritten, &a.log.DataUnitsWritten},
		{&want.HostReads, &a.log.HostReads},
		{&want.HostWrites, &a.log.HostWrites},
		{&want.BusyTime, &a.log.BusyTime},
		{&want.UnsafeShutdowns, &a.log.UnsafeShutdowns},
		{&want.MediaErrors, &a.log.MediaErrors},
		{&want.ErrorLogEntries, &a.log.ErrorLogEntries},
	} {
		*sum.to = sum.to.Add(*sum.a)
	}
	l := r.smart(h, nvme.NSIDAll)
	testutil.True(t, l == want, "the subsystem: %+v\nwant %+v", l, want)
}

// TestDriveAndMemory: the target counts for drives that do not count, and for namespaces without a
// drive.
func TestDriveAndMemory(t *testing.T) {
	sata, silent := &testDrive{
		id:  "sata",
		log: nvme.SMARTLog{Temperature: 310, AvailableSpare: 90, PowerOnHours: u128(50)},
	},
		&testDrive{id: "silent", err: errors.New("no answer")}
	r, h := joined(t, 1, 1, onDrives(t, sata, nil, silent))
	for nsid, n := range map[uint32]int{1: 2, 2: 3, 3: 4} {
		for range n {
			r.ok(h.io[0], rw(nvme.NVMRead, nsid, 0, 1, make([]byte, 512)))
		}
	}
	for nsid, want := range map[uint32]nvme.SMARTLog{
		1: {
			Temperature: 310, AvailableSpare: 90, PowerOnHours: u128(50),
			HostReads: u128(2), DataUnitsRead: u128(1),
		},
		2: {AvailableSpare: 100, PowerCycles: u128(1), HostReads: u128(3), DataUnitsRead: u128(1)},
		3: {AvailableSpare: 100, PowerCycles: u128(1), HostReads: u128(4), DataUnitsRead: u128(1)},
		nvme.NSIDAll: {
			Temperature: 310, AvailableSpare: 90, PowerOnHours: u128(50),
			PowerCycles: u128(1), HostReads: u128(9), DataUnitsRead: u128(1),
		},
	} {
		l := r.smart(h, nsid)
		testutil.True(t, l == want, "namespace %#x: %+v\nwant %+v", nsid, l, want)
	}
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
