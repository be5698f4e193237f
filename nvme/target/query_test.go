package target

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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
			if (v == nil) != (n == 0) || v != nil && *v != n || !errors.Is(got, err) {
				t.Errorf("%s: %v, %v", what, v, got)
			}
		}
		start := time.Now()
		want("no answer", 0, nil)
		if d := time.Since(start); d != answerWait {
			t.Errorf("waited %v", d)
		}
		start = time.Now()
		for range 1000 {
			want("still none", 0, nil)
		}
		if d := time.Since(start); d != 0 || calls.Load() != 1 {
			t.Errorf("waited %v; %d calls", d, calls.Load())
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
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls", n)
		}
		time.Sleep(q.age)
		failed := errors.New("failed")
		go func() { next <- failed }()
		want("the last answer stays", 2, failed)
	})
}
