package e2e

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// reopened is a device with storage that can be closed and opened again.
type reopened struct {
	backend.Device
	open func() (backend.Device, error)
}

// swap opens the device of namespace 1 again, if possible, while the namespace does not use it.
func (h *Env) swap() error {
	return h.Target.UpdateNamespace(SubNQN, namespaces.Config{NSID: 1},
		func(old backend.Device) (backend.Device, error) {
			d, ok := old.(*reopened)
			if !ok {
				return old, nil
			}
			if err := d.Close(); err != nil {
				return old, err
			}
			var err error
			d.Device, err = d.open()
			return d, err
		})
}

// TestSwapUnderLoad: no command fails and no data is lost while the device of a RAM namespace is
// repeatedly exchanged.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(o *Options) { o.Reactors = 2; o.QueueDepth = 64 }, swapUnderLoad)
}

// TestSwapFileUnderLoad: the same for a file that is closed and opened again.
func TestSwapFileUnderLoad(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) {
		o.Reactors, o.QueueDepth = 2, 64
		path := filepath.Join(t.TempDir(), "disk")
		d := &reopened{open: func() (backend.Device, error) {
			return file.Open(file.Config{Path: path, Size: 64 << 20, BlockSize: 512})
		}}
		var err error
		if d.Device, err = d.open(); err != nil {
			t.Fatal(err)
		}
		o.Devices = []backend.Device{d}
	}, swapUnderLoad)
}

func swapUnderLoad(t *testing.T, h *Env, v Variant) {
	const queues, rounds = 4, 8
	c := h.Dial(v)
	if n, err := c.SetQueueCount(testutil.Context(t), queues); n != queues || err != nil {
		t.Fatalf("%d queues granted: %v", n, err)
	}
	var load sync.WaitGroup
	for i := range queues {
		q := h.Open(c, uint16(i+1), 17+i*4)
		buf := h.Buffer(c, q.Depth()*32768)
		load.Go(func() {
			testutil.Equal(t, verify(q, uint64(i)*16384, buf, rounds), nil, "queue %d", i+1)
		})
	}
	ended := make(chan struct{})
	go func() {
		load.Wait()
		close(ended)
	}()
	for n := 1; ; n++ {
		h.Must(h.swap())
		select {
		case <-ended:
			t.Log(n, "exchanges")
			return
		default:
		}
	}
}

// TestSwapDespiteSlowReader: a host that does not receive the data of its reads of a RAM namespace
// prevents neither the exchange of the device nor its use by others meanwhile.
func TestSwapDespiteSlowReader(t *testing.T) {
	t.Parallel() // it mostly waits
	h := New(t, Options{Memory: 16})
	q := h.Open(h.Dial(Plain[0]), 1, 16)
	unreadTCP(h)
	swapped := make(chan error, 1)
	go func() { swapped <- h.swap() }()
	h.Until("the device is exchanged", func() bool {
		h.Must(hosttest.Flush(testutil.Context(t), q, 1))
		return len(swapped) > 0
	})
	h.Must(<-swapped)
}

// TestRemovePort: connections end with their listener, connections of the other listener stay, and
// no new one is accepted.
func TestRemovePort(t *testing.T) {
	h := New(t, Options{Reactors: 2, Port: testutil.FreePort(t)})
	var queues []*host.Queue
	for _, v := range Plain {
		queues = append(queues, h.Open(h.Dial(v), 1, 16))
	}
	for i, v := range Plain {
		h.Must(hosttest.Flush(testutil.Context(t), queues[i], 1))
		h.Must(h.Target.RemovePort(uint16(i + 1)))
		h.Until("the queue ends", func() bool {
			return hosttest.Flush(testutil.Context(t), queues[i], 1) != nil
		})
		_, err := host.Connect(testutil.Context(t), h.Transport(v), v.HostOptions())
		testutil.True(t, err != nil, "%s: connected to a listener that was removed", v.Name)
	}
	h.Until("all sessions end", func() bool { return h.Target.Sessions() == 0 })
}
