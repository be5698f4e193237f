package fabrictest

import (
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTimers: timers run in the order of their time on the virtual clock, on all reactors, and may
// be stopped.
func TestTimers(t *testing.T) {
	w := testutil.Value(NewWorld(2))(t)
	defer func() { testutil.Check(t, w.Close()) }()
	a, b := w.Reactors[0], w.Reactors[1]
	var got []int
	note := func(n int) func() { return func() { got = append(got, n) } }
	a.After(int64(3*time.Second), note(3))
	b.After(int64(time.Second), func() {
		note(1)()
		a.After(int64(time.Second), note(2)) // due within the same Advance
	})
	stop := a.After(int64(time.Second), note(99))
	a.After(int64(time.Hour), note(100))
	stop()
	stop()
	start := a.Now()
	w.Advance(3 * time.Second)
	testutil.True(t, slices.Equal(got, []int{1, 2, 3}) && b.Now()-start == int64(3*time.Second) &&
		a.Timers() == 1, "ran %v, clock %v, %d timers", got, time.Duration(b.Now()-start),
		a.Timers())
}
