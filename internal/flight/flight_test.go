package flight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestAnswer: one question answers everybody, and again while the answer is fresh. Nobody waits
// longer than wanted.
func TestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, end := 0, make(chan error)
		q := Question[int]{Fresh: time.Second, Ask: func() (int, error) {
			asked++
			return asked, <-end
		}}
		answers := make(chan error)
		for range 3 {
			go func() {
				_, err := q.Answer(t.Context())
				answers <- err
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		testutil.Is(t, testutil.Err(q.Answer(ctx)), context.DeadlineExceeded, "")
		want := errors.New("no sysfs")
		end <- want
		for range 3 {
			testutil.Is(t, <-answers, want, "")
		}
		time.Sleep(q.Fresh - 1)
		_, err := q.Answer(t.Context())
		testutil.True(t, errors.Is(err, want) && asked == 1, "%v, asked %d times", err, asked)
		time.Sleep(time.Nanosecond)
		go func() { end <- nil }()
		if n, err := q.Answer(t.Context()); err != nil || n != 2 || asked != 2 {
			t.Errorf("%d, %v, asked %d times", n, err, asked)
		}
	})
}
