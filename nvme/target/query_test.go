package target

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// get waits for an answer and returns it.
func (q *query[T]) get() (*T, error) {
	awaitAll([]asker{q})
	v, _, err := q.peek()
	return v, err
}

// TestQuery: a question is asked once for all that want to know, at most once per age, and an
// answer that does not come within answerWait is replaced by the last one.
func TestQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		next := make(chan error)
		q := query[int]{age: time.Second, ask: func() (*int, error) {
			n := int(calls.Add(1))
			return &n, <-next
		}}
		want := func(what string, n int, err error) {
			t.Helper()
			v, got := q.get()
			testutil.True(t, (v == nil) == (n == 0) && (v == nil || *v == n) && errors.Is(got, err),
				"%s: %v, %v", what, v, got)
		}
		start := time.Now()
		want("no answer", 0, nil)
		testutil.Equal(t, time.Since(start), answerWait, "waited")
		start = time.Now()
		for range 1000 {
			want("still none", 0, nil)
		}
		if d := time.Since(start); d != 0 || calls.Load() != 1 || len(q.waiters) != 0 {
			t.Errorf("waited %v; %d calls, %d waiters", d, calls.Load(), len(q.waiters))
		}
		next <- nil
		synctest.Wait()
		if v, at, _ := q.peek(); v == nil || *v != 1 || at != start {
			t.Errorf("the late answer: %v, %v", v, at)
		}
		done := make(chan bool)
		for range 100 {
			go func() {
				want("shared", 2, nil)
				done <- true
			}()
		}
		synctest.Wait()
		next <- nil
		for range 100 {
			<-done
		}
		want("not asked again", 2, nil)
		testutil.Equal(t, calls.Load(), 2, "calls")
		time.Sleep(q.age)
		failed := errors.New("failed")
		go func() { next <- failed }()
		want("the last answer stays", 2, failed)
	})
}

// TestQueryIsFresh: an answer comes from a call that began after the request, or less than age
// before, however many calls run and end meanwhile; those who ask during one call share the next.
func TestQueryIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var value, calls atomic.Int64
		next := make(chan struct{})
		q := query[int64]{ask: func() (*int64, error) {
			calls.Add(1)
			v := value.Load()
			<-next
			return &v, nil
		}}
		results := make(chan int64, 200)
		ask := func() {
			v, _ := q.get()
			results <- *v
		}
		value.Store(1)
		go ask()
		synctest.Wait() // the call has read 1
		value.Store(2)
		for range 100 {
			go ask()
		}
		synctest.Wait()
		next <- struct{}{}
		testutil.Equal(t, <-results, 1, "the first answer")
		synctest.Wait()
		testutil.True(t, len(results) == 0 && calls.Load() == 2, "%d answers, %d calls",
			len(results), calls.Load())
		next <- struct{}{}
		for range 100 {
			if v := <-results; v != 2 {
				t.Fatalf("answer %d of a call that began before the request", v)
			}
		}
		synctest.Wait()
		testutil.Equal(t, calls.Load(), 2, "calls")
	})
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

// TestManyWait: commands that wait for storage that hangs take no goroutine each, are answered
// after answerWait from what is known, and leave nothing behind when their queue ends.
func TestManyWait(t *testing.T) { synctest.Test(t, testManyWait) }

func testManyWait(t *testing.T) {
	r, thin := thinHarness(t)
	defer close(thin.hang)
	q := r.target.find(testSub).namespaces.Load().get(1).thin()
	var hosts []*host
	var commands []*fabrictest.Command
	connect := func(n int) {
		for range n {
			h := r.connectHost(0)
			hosts = append(hosts, h)
			for range 31 {
				commands = append(commands,
					r.send(h.admin, identifyCommand(nvme.CNSNamespace, 1)))
			}
		}
	}
	connect(1)
	<-thin.asked
	before := runtime.NumGoroutine()
	connect(63)
	if n := runtime.NumGoroutine(); n > before || len(q.waiters) != len(commands) {
		t.Errorf("%d goroutines for %d commands, %d before; %d waiters", n, len(commands), before,
			len(q.waiters))
	}
	for _, h := range hosts[:32] {
		h.hangUp()
	}
	r.until("half of the controllers have ended",
		func() bool { return len(r.target.Controllers()) == 32 })
	testutil.Equal(t, len(q.waiters), len(commands)/2, "waiters left")
	r.w.Advance(answerWait)
	done := 0
	for range len(commands)/2/delayBatch + 1 { // some of them in each step
		before := done
		done = 0
		for _, c := range commands[len(commands)/2:] {
			if c.Done {
				done++
			}
		}
		testutil.True(t, done-before <= delayBatch, "%d are answered in one step", done-before)
		r.w.Advance(time.Millisecond)
	}
	for _, c := range commands[len(commands)/2:] {
		testutil.MustTrue(t, c.Done && c.CQE.Status().OK(), "answered %v, %v", c.Done,
			c.CQE.Status())
	}
	testutil.Equal(t, len(q.waiters), 0, "waiters left")
}

// TestDrivesAreAskedTogether: drives that do not answer hold up the health log of their subsystem,
// and the check of all drives, for answerWait, not each of them for that long.
func TestDrivesAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drives []Drive
		for range 3 {
			d := hangingDrive{make(chan struct{}), make(chan struct{})}
			defer close(d.release)
			drives = append(drives, d)
		}
		r := newHarness(t, 1, onDrives(t, drives...))
		h := r.connectHost(0)
		start := time.Now()
		log := r.send(h.admin, logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0))
		r.target.CheckHealth()
		for _, d := range drives {
			<-d.(hangingDrive).asked
		}
		testutil.Equal(t, time.Since(start), answerWait, "checked for")
		r.w.Advance(answerWait)
		r.until("the log is read", func() bool { return log.Done })
		testutil.True(t, log.CQE.Status().OK(), "the log is read: %v", log.CQE.Status())
	})
}

// thinHarness is a target with one namespace, which is thin and whose storage answers when it is
// told to.
func thinHarness(t *testing.T) (*harness, *thinDevice) {
	thin := &thinDevice{
		Device: ramDeviceOpen(t, 1<<20, 4096),
		asked:  make(chan struct{}), hang: make(chan struct{}),
	}
	closeLast(t, thin)
	sub := ramSubsystem(t, 0)
	sub.Namespaces = []NamespaceConfig{{NSID: 1, Device: thin}}
	return newHarness(t, 1, sub), thin
}
