package admin

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// get waits for an answer and returns it.
func (q *Query[T]) get() (*T, error) {
	AwaitAll([]Asker{q})
	v, _, err := q.Peek()
	return v, err
}

// TestQuery: a question is asked once for all that want to know, at most once per age, and an
// answer that does not come within AnswerWait is replaced by the last one.
func TestQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		next := make(chan error)
		q := Query[int]{Age: time.Second, Ask: func() (*int, error) {
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
		testutil.Equal(t, time.Since(start), AnswerWait, "waited")
		start = time.Now()
		for range 1000 {
			want("still none", 0, nil)
		}
		if d := time.Since(start); d != 0 || calls.Load() != 1 || len(q.waiters) != 0 {
			t.Errorf("waited %v; %d calls, %d waiters", d, calls.Load(), len(q.waiters))
		}
		next <- nil
		synctest.Wait()
		v, at, _ := q.Peek()
		testutil.True(t, v != nil && *v == 1 && at == start, "the late answer: %v, %v", v, at)
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
		time.Sleep(q.Age)
		failed := errors.New("failed")
		go func() { next <- failed }()
		want("the last answer stays", 2, failed)
	})
}

// TestQueryIsFresh: an answer comes from a call that began after the request, or less than age
// before, for any number of calls that run and end meanwhile. Requests during one call share the
// next.
func TestQueryIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var value, calls atomic.Int64
		next := make(chan struct{})
		q := Query[int64]{Ask: func() (*int64, error) {
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
			v := <-results
			testutil.MustTrue(t, v == 2, "answer %d of a call that began before the request", v)
		}
		synctest.Wait()
		testutil.Equal(t, calls.Load(), 2, "calls")
	})
}

// TestChangedNamespacesOverflow: more than 1024 changes make the list FFFFFFFFh.
func TestChangedNamespacesOverflow(t *testing.T) {
	var l ChangedNamespaces
	for i := range uint32(nvme.NamespacesPerList) {
		l.Add(2000 - i)
		l.Add(2000 - i)
	}
	testutil.True(t, !l.overflow && len(l.nsids) == nvme.NamespacesPerList &&
		l.nsids[0] == 2000-nvme.NamespacesPerList+1, "overflow %v, %d entries", l.overflow,
		len(l.nsids))
	l.Add(1)
	testutil.True(t, l.overflow, "no overflow")
	ids, _ := targettest.ParseNamespaceList(l.Page())
	testutil.True(t, len(ids) == 1 && ids[0] == nvme.ChangedNamespacesOverflow, "list %v", ids)
}

const second = int64(1e9)

// TestKeepAlive: the timer expires after a silence, of an enabled controller.
func TestKeepAlive(t *testing.T) {
	var k KeepAlive
	testutil.True(t, !k.Start(0, false, 0, 0) && k.Start(0, true, 0, 0), "without a timeout")
	testutil.Equal(t, RoundKeepAlive(4001), 5000, "timeout in ms")
	testutil.True(t, k.Start(5000, false, 7*second, 10), "with a timeout")
	at := 7*second + k.Next(7*second)
	testutil.Equal(t, at, 7500*second/1000, "first check")
	testutil.True(t, !k.Check(at, 11, true) && !k.Check(at+5*second/2, 11, true), "expires early")
	left, margin := k.Left(at+5*second/2, 11, true)
	testutil.True(t, left.Seconds() == 2.5 && margin.Seconds() == 2.5,
		"%v left, and once %v", left, margin)
	testutil.True(t, !k.Check(at+5*second, 11, false), "expires although it is not enabled")
	testutil.True(t, k.Check(at+10*second, 11, true), "does not expire")
}

// TestKeepAliveAfterStall: when this process stood still, commands may wait unread, so the first
// check after that does not expire.
func TestKeepAliveAfterStall(t *testing.T) {
	var k KeepAlive
	k.Start(5000, false, 0, 10)
	k.Check(second, 10, true)
	testutil.True(t, !k.Check(30*second, 10, true), "expires because this process stood still")
	testutil.True(t, k.Check(35*second, 10, true), "does not expire afterwards")
}

// TestRegisters: a reset and a shutdown are complete when the I/O queues have ended, and a refused
// write changes nothing.
func TestRegisters(t *testing.T) {
	var r Registers
	write := func(v nvme.CC, want Change, refused bool) {
		t.Helper()
		before := r.CC
		got, st := r.Write(v)
		testutil.Equal(t, got, want, "changes by %#x", uint32(v))
		testutil.True(t, st.OK() != refused && (!refused || r.CC == before), "status %v", st)
	}
	enable, shutdown := nvme.CCLinux, nvme.CC(1<<14)
	write(enable|1<<1, 0, true)
	write(enable|1<<7, 0, true) // MPS
	write(enable, Enabled, false)
	testutil.True(t, r.CSTS.RDY(), "CSTS %#x after it was enabled", r.CSTS)
	write(enable, 0, false)
	write(enable|shutdown, Shutdown, false)
	testutil.Equal(t, r.CSTS.SHST(), 1, "SHST of a shutdown")
	testutil.True(t, r.QueuesEnded() && r.CSTS.SHST() == 2 && r.CSTS.RDY(), "CSTS %#x", r.CSTS)
	write(enable, 0, false)
	write(enable|shutdown, 0, false) // only a reset clears SHST
	write(0, Reset, false)
	testutil.True(t, r.CSTS.RDY() && r.CSTS.SHST() == 0, "CSTS %#x of a reset", r.CSTS)
	write(enable, 0, true) // it is not complete
	testutil.True(t, !r.QueuesEnded() && r.CSTS == 0, "CSTS %#x", r.CSTS)
	write(enable, Enabled, false)
	write(shutdown, Reset|Shutdown, false)
	testutil.True(t, r.QueuesEnded() && !r.CSTS.RDY(), "CSTS %#x: ready after a reset", r.CSTS)
	write(0, 0, false)
	write(enable|shutdown, Enabled|Shutdown, false)
	testutil.True(t, r.CSTS.RDY() && r.CSTS.SHST() == 1, "CSTS %#x of a shutdown at once", r.CSTS)
}
