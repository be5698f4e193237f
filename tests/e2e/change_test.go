package e2e

import (
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// swap exchanges the device of namespace 1 for itself: its channels are closed and opened again.
func (h *harness) swap() error {
	return h.target.UpdateNamespace(subNQN, target.NamespaceConfig{NSID: 1},
		func(old backend.Device) (backend.Device, error) { return old, nil })
}

// TestSwapUnderLoad: no command fails and no data is lost while the device of a namespace is
// exchanged again and again.
func TestSwapUnderLoad(t *testing.T) {
	const queues, rounds = 4, 8
	eachVariant(t, func(o *options) { o.reactors = 2; o.queueDepth = 64 },
		func(t *testing.T, h *harness, v variant) {
			c := h.connect(v)
			if n, err := c.SetQueueCount(testContext(t), queues); n != queues || err != nil {
				t.Fatalf("%d queues granted: %v", n, err)
			}
			var load sync.WaitGroup
			for i := range queues {
				q := h.open(c, uint16(i+1), 17+i*4)
				buf := h.buffer(c, q.Depth()*32768)
				load.Go(func() {
					if err := verify(q, uint64(i)*16384, buf, rounds); err != nil {
						t.Errorf("queue %d: %v", i+1, err)
					}
				})
			}
			ended := make(chan struct{})
			go func() {
				load.Wait()
				close(ended)
			}()
			for {
				h.must(h.swap())
				select {
				case <-ended:
					return
				default:
				}
			}
		})
}

// TestSwapDespiteSlowReader: a host that does not take what it reads of a namespace in memory does
// not keep its device from being exchanged, nor others from using it meanwhile.
func TestSwapDespiteSlowReader(t *testing.T) {
	h := newHarness(t, options{memory: 16})
	q := h.open(h.connect(plain[0]), 1, 16)
	unreadTCP(h)
	swapped := make(chan error, 1)
	go func() { swapped <- h.swap() }()
	for len(swapped) == 0 {
		h.must(q.Flush(testContext(t), 1))
	}
	h.must(<-swapped)
}
