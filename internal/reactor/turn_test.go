package reactor

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestManyPostsAndTimers: pollers have their turns between any number of posted functions and due
// timers.
func TestManyPostsAndTimers(t *testing.T) {
	const n = 1000
	posts, timers := 0, 0 // since the last poll
	var most [2]int
	p := &poller{poll: func(int) int {
		most[0], most[1] = max(most[0], posts), max(most[1], timers)
		posts, timers = 0, 0
		return 0
	}}
	r := start(t, Config{CPU: -1}, p)
	done := make(chan struct{})
	left := 2 * n
	count := func(of *int) {
		*of++
		if left--; left == 0 {
			close(done)
		}
	}
	do(t, r, func() {
		for range n {
			r.Post(func() { count(&posts) })
			r.After(0, func() { count(&timers) })
		}
	})
	testutil.Receive(t, "the last of them", done)
	do(t, r, func() {
		testutil.True(t, most[0] <= postsMost && most[1] <= timersMost && most[0] != 0 &&
			most[1] != 0, "%d functions and %d timers between two polls", most[0], most[1])
	})
}
