package admin

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
