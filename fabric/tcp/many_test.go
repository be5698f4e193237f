package tcp

import "testing"

// TestManyQueues: with any number of connections in a group, deadlines and a stop handle few of
// them in a turn.
func TestManyQueues(t *testing.T) {
	for _, n := range []int{10, 10_000} {
		h := newManual(t, options{})
		queues := make([]queue, n)
		for i := range queues {
			q := &queues[i]
			q.g, q.state = h.g, queueDead
			h.g.queues.Add(q, &q.place)
		}
		turns := func() (n int) {
			for n = 1; len(h.loop.posts) > 0; n++ {
				posts := h.loop.posts
				h.loop.posts = nil
				for _, fn := range posts {
					fn()
				}
			}
			return n
		}
		for what, look := range map[string]func(){
			"deadlines": h.g.checkDeadlines, "stop": func() { h.g.Shutdown(func() {}) },
		} {
			look()
			if got := turns(); got < n/100 || n < 100 && got > 2 {
				t.Errorf("%s of %d connections: %d turns", what, n, got)
			}
		}
		for i := range queues {
			h.g.queues.Remove(&queues[i].place)
		}
		h.close()
	}
}
