package target

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

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
