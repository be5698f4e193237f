package tcp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestManyEnd: however many connections end together, a poll ends so many of them that
// they have about 1,024 commands.
func TestManyEnd(t *testing.T) {
	for _, depth := range []int{8, 128} {
		for _, disconnected := range []bool{false, true} {
			h := newManual(t, options{})
			const connections = 60
			var peers []int
			for range connections {
				h.connect(pdu.Params{}, depth)
				peers = append(peers, h.peer)
			}
			for q := range h.g.queues.All() {
				if disconnected {
					q.Disconnect(errShutdown)
				}
			}
			for _, fd := range peers {
				_ = unix.Close(fd)
			}
			h.peer = -1
			ended := func() (n int) {
				n = connections
				for q := range h.g.queues.All() {
					if q.open {
						n--
					}
				}
				return n
			}
			polls := 0
			for before := 0; before < connections; polls++ {
				h.g.Poll(64)
				now := ended()
				testutil.MustTrue(t, (now-before)*depth <= 2*MaxQueueDepth && polls < 1000,
					"%d connections of depth %d end in a poll", now-before, depth)
				before = now
			}
			testutil.True(t, polls >= connections*depth/2/MaxQueueDepth, "only %d polls", polls)
			h.close()
		}
	}
}
