package check

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLookupTime: a directory service that does not answer does not delay anything forever, and is
// not asked again in the same time.
func TestLookupTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), lookupTime, errLookup)
		defer cancel()
		asked, answer := 0, make(chan int)
		find := func() (int, error) {
			asked++
			return <-answer, nil
		}
		for range 3 {
			testutil.Is(t, testutil.Err(within(ctx, find)), errLookup, "")
		}
		answer <- 1
		synctest.Wait()
		testutil.True(t, asked == 1, "asked %d times", asked)
		id, err := within(t.Context(), func() (int, error) { return 2, nil })
		testutil.True(t, id == 2 && err == nil, "%v %v", id, err)
	})
}
