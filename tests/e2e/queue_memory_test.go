package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestQueueMemory opens queues until the memory for them is used up: the next one is refused, the
// log says why, the others go on, and one that is closed makes room.
func TestQueueMemory(t *testing.T) {
	limit := func(o *options) { o.tcp.QueueMemory, o.rdma.QueueMemory = 500<<10, 2<<20 }
	bothWays(t, limit, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		var open []*host.Queue
		for {
			q, err := c.OpenQueue(testContext(t), uint16(len(open)+1), 128)
			if err != nil {
				break
			}
			if open = append(open, q); len(open) > 10 {
				t.Fatal("there is no limit")
			}
		}
		if len(open) < 2 {
			t.Fatalf("%d queues", len(open))
		}
		said := func() bool {
			return strings.Contains(r.log.String(),
				"KiB of memory and this one wants")
		}
		// it is written beside the reactor
		for end := time.Now().Add(patience); !said() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if !said() {
			t.Errorf("the log does not say why:\n%s", r.log)
		}
		for _, q := range open {
			r.must(q.Flush(testContext(t), 1))
		}
		r.ping(c)
		last := uint16(len(open))
		r.must(open[last-1].Close())
		open = open[:last-1]
		again, err := c.OpenQueue(testContext(t), last, 128)
		// the target notices a moment later
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
			again, err = c.OpenQueue(testContext(t), last, 128)
		}
		r.must(err)
		for _, q := range append(open, again) {
			r.must(q.Close())
		}
	})
}
