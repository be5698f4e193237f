package e2e

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestQueueMemory opens queues until their memory is used up. The next one is refused, the log
// gives the reason, the others continue, and closing one makes room.
func TestQueueMemory(t *testing.T) {
	limit := func(o *Options) {
		o.TCP = func(c *tcp.Config) { c.QueueMemory = 1 << 20 }
		o.RDMA = func(c *rdma.Config) { c.QueueMemory = 6 << 20 }
	}
	eachTransport(t, limit, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		var open []*host.Queue
		for {
			q, err := c.OpenQueue(testutil.Context(t), uint16(len(open)+1), 128)
			if err != nil {
				break
			}
			open = append(open, q)
			testutil.MustTrue(t, len(open) <= 10, "there is no limit")
		}
		testutil.MustTrue(t, len(open) >= 2, "%d queues", len(open))
		h.Until("the log says why", func() bool { // written asynchronously
			return strings.Contains(h.Log.String(), "KiB of queue memory, their share")
		})
		for _, q := range open {
			h.Must(hosttest.Flush(testutil.Context(t), q, 1))
		}
		h.Ping(c)
		last := uint16(len(open))
		h.Must(open[last-1].Close())
		open = open[:last-1]
		h.Until("closing one makes room", func() bool {
			q, err := c.OpenQueue(testutil.Context(t), last, 128)
			if err == nil {
				open = append(open, q)
			}
			return err == nil
		})
		for _, q := range open {
			h.Must(q.Close())
		}
	})
}
