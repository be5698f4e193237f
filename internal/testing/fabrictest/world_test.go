package fabrictest

import (
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func newWorld(t *testing.T, n int) *World {
	w := testutil.Value(NewWorld(n))(t)
	t.Cleanup(func() { testutil.Check(t, w.Close()) })
	return w
}

// TestTimers: timers run in the order of their time on the virtual clock, on all reactors, and may
// be stopped.
func TestTimers(t *testing.T) {
	w := newWorld(t, 2)
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
	if !slices.Equal(got, []int{1, 2, 3}) || b.Now()-start != int64(3*time.Second) ||
		a.Timers() != 1 {
		t.Errorf("ran %v, clock %v, %d timers", got, time.Duration(b.Now()-start), a.Timers())
	}
}

// TestUntil sleeps until another goroutine posts.
func TestUntil(t *testing.T) {
	w := newWorld(t, 1)
	done := false
	go w.Reactors[0].Post(func() { done = true })
	testutil.Check(t, w.Until(func() bool { return done }))
	testutil.True(t, !w.Step(), "there was more to do")
}

type counter struct{ polls, work int }

func (c *counter) Poll(int) int {
	c.polls++
	if c.work == 0 {
		return 0
	}
	c.work--
	return 1
}
func (c *counter) Arm() bool { return true }

// TestSettle polls as long as there is work.
func TestSettle(t *testing.T) {
	w := newWorld(t, 1)
	c := &counter{work: 5}
	w.Reactors[0].Attach(c)
	w.Settle()
	testutil.True(t, c.work == 0 && c.polls == 6, "%d polls, %d left", c.polls, c.work)
	testutil.True(t, w.Reactors[0].Watch(0, 0, nil) != nil,
		"a virtual reactor watches a descriptor")
}
