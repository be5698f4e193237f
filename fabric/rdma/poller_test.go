package rdma

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// cqDevice is a device with nothing but completion queues.
type cqDevice struct{ verbs.Device }

func (cqDevice) CreateCQ(int, verbs.CompChannel, int) (verbs.CQ, error) { return nil, nil }

// A thousand queues of the usual depth share few completion queues. A device that has only small
// ones needs more.
func TestCompletionQueuesAreShared(t *testing.T) {
	const queues, need = 1024, 3*128 + 16
	for most, want := range map[int]int{1 << 20: 6, 32767: 14} { // 32767: soft RoCE
		p := &poller{
			g:   &group{},
			dev: &device{dev: cqDevice{}, attr: verbs.DeviceAttr{MaxCQE: most}},
		}
		for range queues {
			testutil.Value(p.acquireCQ(need, nil))(t)
		}
		promised := 0
		for _, c := range p.cqs {
			testutil.True(t, c.used <= c.size && c.size <= most, "%d of %d entries are promised",
				c.used, c.size)
			promised += c.used
		}
		testutil.True(t, promised == queues*need && len(p.cqs) == want,
			"%d completion queues for %d entries, want %d", len(p.cqs), promised, want)
	}
}
