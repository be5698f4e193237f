package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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

// TestManyCommands: a poll begins a bounded number of the commands that a queue has received. The
// rest comes before other input, unless the queue ends.
func TestManyCommands(t *testing.T) {
	const n, most = 1000, pollBytes / commandCost
	for _, ends := range []bool{false, true} {
		h, c := joined(t, options{
			hold: true, arena: 16 << 20, cfg: Config{MaxDepth: MaxQueueDepth},
		}, pdu.Params{}, MaxQueueDepth)
		var all []byte
		for i := range n {
			all = append(all, c.held(nvme.NVMRead, uint16(i), 0, 4096)...)
		}
		sent, e := sys.Send(h.peer, all, 0)
		testutil.MustTrue(t, e == 0 && sent == len(all), "%d of %d bytes: %v", sent, len(all), e)
		h.g.pollEvents()
		begun := h.d.Executed.Load()
		for last, end := begun, begun+n; last < end && !(ends && h.g.reader != nil); {
			testutil.MustTrue(t, !h.g.Arm(), "%d commands are left", end-last)
			h.g.Poll(64)
			now := h.d.Executed.Load()
			testutil.MustTrue(t, now-last <= most, "%d commands in a poll", now-last)
			last = now
		}
		if ends {
			h.hangUp()
			testutil.True(t, h.g.reader == nil, "input is left of a queue that has ended")
		}
		peer := h.peer
		begun = h.d.Executed.Load()
		c = h.connect(pdu.Params{}, 4)
		h.send(c.held(nvme.NVMRead, 0, 0, 4096))
		testutil.Equal(t, h.d.Executed.Load()-begun, 2, "commands of another queue")
		h.hangUp()
		h.peer = peer
		h.close()
	}
}
