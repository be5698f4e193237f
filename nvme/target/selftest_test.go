package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
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
	t := &h.r.target.find(testSub).lookup(h.cntlid).selfTest
	h.r.inTime("the self-test ends", func() bool { return t.code == 0 })
	l := h.selfTestLog()
	if l.Operation != 0 || l.Completion != 0 {
		h.r.t.Errorf("operation %d, %d%%", l.Operation, l.Completion)
	}
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
	for _, c := range r.target.find(testSub).controllers {
		if c.selfTest.reading != 0 {
			return true
		}
	}
	return false
}

// TestSelfTest: operations, what they read, and their results, newest first.
func TestSelfTest(t *testing.T) {
	sub := ramSubsystem(t, 2)
	d := &recorder{Device: sub.Namespaces[1].Device, info: func(*backend.Info) {}}
	sub.Namespaces[1].Device = d
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
	if id := h.controller(); id.OACS != nvme.OACSSelfTest || id.EDSTT != 1 || id.DSTO != 0 {
		t.Errorf("OACS %#x, EDSTT %d, DSTO %d", id.OACS, id.EDSTT, id.DSTO)
	}
	if first := h.selfTestLog().Results[0].DSTS; first != 0xF {
		t.Errorf("a result without a test: %#x", first)
	}
	for i, tc := range []struct {
		code  nvme.SelfTestCode
		nsid  uint32
		reads int // of namespace 2
	}{
		{nvme.SelfTestShort, 2, 8},
		{nvme.SelfTestExtended, nvme.NSIDAll, 8},
		{nvme.SelfTestShort, 1, 0},
		{nvme.SelfTestExtended, 0, 0},
	} {
		r.ok(h.admin, selfTestCommand(tc.code, tc.nsid))
		r.status(h.admin, selfTestCommand(nvme.SelfTestShort, 1), nvme.SelfTestInProgress)
		if l := h.selfTestLog(); l.Operation != tc.code {
			t.Errorf("%d: operation %d", i, l.Operation)
		}
		got := h.selfTestEnds()
		if (got != nvme.SelfTestResult{DSTS: uint8(tc.code) << 4}) {
			t.Errorf("%d: %+v", i, got)
		}
		ios := d.take()
		if len(ios) != tc.reads {
			t.Errorf("%d: %d reads", i, len(ios))
		}
		for k, io := range ios {
			if io.Op != backend.OpRead || io.Off != int64(k)<<17 || io.Len != 1<<17 {
				t.Errorf("%d: IO %d: %+v", i, k, io)
			}
		}
	}
	for range 20 {
		r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, 0))
		h.selfTestEnds()
	}
	if l := h.selfTestLog(); l.Results[19].DSTS != 0x10 {
		t.Errorf("the oldest result: %+v", l.Results[19])
	}
	if n := h.errorEntries(); n != 4 {
		t.Errorf("%d entries in the error log, want those of the refused commands", n)
	}
}

// errorEntries is the number of commands that have failed.
func (h *host) errorEntries() uint64 {
	h.r.t.Helper()
	e, err := nvme.Parse[nvme.ErrorLogEntry](h.r.ok(h.admin, logCommand(nvme.LogError, 64, 0)).Data)
	h.r.must(err)
	return e.Count
}

// TestSelfTestRefused: codes that do not exist, and NSIDs of each class (Base section 5.1.5).
func TestSelfTestRefused(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	for code := range nvme.SelfTestCode(16) {
		switch code {
		case nvme.SelfTestShort, nvme.SelfTestExtended:
			for i, want := range (nsidRule{
				good, good, inactive, inactive, invalid, invalid, good,
			}) {
				c := selfTestCommand(code, nsidClasses[i])
				if want != good {
					r.status(h.admin, c, want)
					continue
				}
				r.ok(h.admin, c)
				h.selfTestEnds()
			}
		case nvme.SelfTestAbort:
			r.ok(h.admin, selfTestCommand(code, 1)) // there is nothing to abort
		default:
			r.status(h.admin, selfTestCommand(code, 1), invalidField)
		}
	}
	if l := h.selfTestLog(); l.Results[5].DSTS>>4 != 1 || l.Results[6].DSTS != 0xF {
		t.Errorf("results: %+v", l.Results[:7])
	}
}

// TestSelfTestSample: a short test reads some of a large namespace, from the first to the last
// chunk, at a bounded rate; an extended one reports how much of it is done.
func TestSelfTestSample(t *testing.T) {
	dev, err := null.Open(null.Config{Size: 1<<40 + 512, BlockSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	closeLast(t, dev)
	d := &recorder{Device: dev, info: func(*backend.Info) {}}
	r := newHarness(t, 1, SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []NamespaceConfig{{NSID: 1, Device: d}},
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

// TestSelfTestFails: a block that cannot be read ends the test, and is named.
func TestSelfTestFails(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
	const bad = 700 * 512
	dev.Fail(func(io *backend.IO) error {
		if io.Off <= bad && bad < io.Off+io.Len {
			return &backend.Fault{Off: bad, Err: backend.ErrIO}
		}
		return nil
	})
	r.ok(h.admin, selfTestCommand(nvme.SelfTestExtended, 1))
	want := nvme.SelfTestResult{
		DSTS: 0x27, SEGN: 1, VDINFO: 0xF, NSID: 1, FLBA: 700, SCT: 2, SC: 0x81,
	}
	if got := h.selfTestEnds(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	dev.Fail(func(*backend.IO) error { return backend.ErrIO })
	r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, nvme.NSIDAll))
	want.DSTS, want.VDINFO, want.FLBA = 0x17, 0xD, 0
	if got := h.selfTestEnds(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	dev.Fail(nil)
}

// TestSelfTestEnds: what ends a test before its time, and what does not.
func TestSelfTestEnds(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 2))
	h := r.connectHost(0)
	start := func(code nvme.SelfTestCode, nsid uint32) {
		t.Helper()
		r.ok(h.admin, selfTestCommand(code, nsid))
	}
	expect := func(what string, dsts uint8) {
		t.Helper()
		if l := h.selfTestLog(); l.Operation != 0 || l.Results[0].DSTS != dsts {
			t.Errorf("%s: operation %d, result %#x, want %#x", what, l.Operation,
				l.Results[0].DSTS, dsts)
		}
	}
	reset := func() {
		t.Helper()
		r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
		r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	}
	start(nvme.SelfTestExtended, 1)
	start(nvme.SelfTestAbort, 1)
	expect("abort", 0x21)
	start(nvme.SelfTestShort, nvme.NSIDAll)
	reset()
	expect("reset", 0x12)
	start(nvme.SelfTestExtended, nvme.NSIDAll)
	reset()
	if got := h.selfTestEnds(); got.DSTS != 0x20 {
		t.Errorf("an extended test after a reset: %#x", got.DSTS)
	}
	start(nvme.SelfTestExtended, nvme.NSIDAll)
	r.removeNamespace(1)
	if got := h.selfTestEnds(); got.DSTS != 0x20 {
		t.Errorf("one of the namespaces was removed: %#x", got.DSTS)
	}
	start(nvme.SelfTestShort, 2)
	r.removeNamespace(2)
	if got := h.selfTestEnds(); got.DSTS != 0x13 {
		t.Errorf("the namespace was removed: %#x", got.DSTS)
	}
}

// TestSelfTestOfHangingDevice: a test whose read does not come back can be aborted, the next one
// goes on when it does, and nothing stays when the host is gone.
func TestSelfTestOfHangingDevice(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
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
	if n := dev.Held(); n != 1 {
		t.Errorf("%d reads are held", n)
	}
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
	if n := r.target.Sessions(); n != 1 {
		t.Errorf("%d sessions while the device has the read", n)
	}
	dev.Release()
	r.until("the controller is gone", func() bool { return len(r.target.Controllers()) == 0 })
}

// TestSelfTestTimesOut: a device that does not answer in time fails the test.
func TestSelfTestTimesOut(t *testing.T) {
	sub, dev := faultySubsystem(t)
	sub.Namespaces[0].Timeout = time.Second
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
	dev.Hold(nil)
	r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, 1))
	got := h.selfTestEnds()
	if got.DSTS != 0x17 || nvme.Status(got.SCT)<<8|nvme.Status(got.SC) != notReady {
		t.Errorf("%+v", got)
	}
	dev.Release()
	r.until("the device answers again", func() bool { return r.infos()[0].Ready })
}

// TestSelfTestOfOthers: what is reserved by another host is not read, and that is no
// failure. A limit slows the test down.
func TestSelfTestOfOthers(t *testing.T) {
	sub := ramSubsystem(t, 2)
	d := &recorder{Device: sub.Namespaces[0].Device, info: func(*backend.Info) {}}
	sub.Namespaces[0].Device = d
	r := newHarness(t, 1, sub)
	a, b := r.connectHost(1), r.connectHost(0, func(a *connectArgs) {
		a.host, a.hostID = otherHost, [16]byte{7}
	})
	r.ok(a.io[0], register(1))
	r.ok(a.io[0], acquire(1, nvme.ExclusiveAccess))
	r.ok(b.admin, selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll))
	if got := b.selfTestEnds(); got.DSTS != 0x20 || len(d.take()) != 0 {
		t.Errorf("result %#x", got.DSTS)
	}
	r.ok(a.admin, selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll))
	if got := a.selfTestEnds(); got.DSTS != 0x20 || len(d.take()) != 8 {
		t.Errorf("result of the holder: %#x", got.DSTS)
	}
	r.target.SetHostLimits(testHost, Limits{Bandwidth: 256 << 10})
	r.w.Settle()
	began := r.w.Reactors[0].Now()
	r.ok(a.admin, selfTestCommand(nvme.SelfTestExtended, 1))
	if a.selfTestEnds(); r.w.Reactors[0].Now()-began < int64(3*time.Second) {
		t.Error("1 MiB was read faster than 256 KiB per second allow")
	}
	d.take()
}
