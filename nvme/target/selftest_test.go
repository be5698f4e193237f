package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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
