package check

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestLookupTime: a directory service that does not answer does not delay anything forever, and is
// not asked again in the same time.
func TestLookupTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), lookupTime)
		defer cancel()
		asked, answer := 0, make(chan int)
		find := func() (int, error) {
			asked++
			return <-answer, nil
		}
		for range 3 {
			if _, err := within(ctx, find); !errors.Is(err, errLookup) {
				t.Error(err)
			}
		}
		answer <- 1
		synctest.Wait()
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
		id, err := within(t.Context(), func() (int, error) { return 2, nil })
		if id != 2 || err != nil {
			t.Error(id, err)
		}
	})
}
