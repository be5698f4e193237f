package live

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// worker is a host that writes and reads a namespace that no change touches.
type worker struct {
	p        *place
	q        *host.Queue
	end      atomic.Bool
	ended    chan error
	failed   bool
	commands atomic.Int64
}

func startWorker(p *place) *worker {
	c := p.Connect(p.transport("tcp 1"), host.Options{
		HostNQN: hostNQN(0), HostID: [16]byte{1}, SubNQN: anchorNQN, Timeout: testutil.Patience,
	})
	w := &worker{p: p, q: p.Open(c, 1, 32), ended: make(chan error, 1)}
	out, in := p.Buffer(c, 4096), p.Buffer(c, 4096)
	go func() { w.ended <- w.run(out, in) }()
	return w
}

// run writes and reads until the end or the first error.
func (w *worker) run(out, in []byte) error {
	for i := 0; !w.end.Load(); i++ {
		ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
		for j := range out {
			out[j] = byte(i + j*i)
		}
		block := uint64(i % 128 * 8)
		err := hosttest.Write(ctx, w.q, 1, block, 8, out, 0)
		if err == nil {
			err = hosttest.Read(ctx, w.q, 1, block, 8, in)
		}
		cancel()
		if err == nil && !bytes.Equal(in, out) {
			err = fmt.Errorf("block %d: other bytes were read than written", block)
		}
		if err != nil {
			return err
		}
		w.commands.Add(2)
	}
	return nil
}

// check fails the test if the worker has seen an error.
func (w *worker) check() {
	w.p.t.Helper()
	select {
	case err := <-w.ended:
		w.failed = true
		w.p.t.Fatalf("the host beside the changes: %v", err)
	default:
	}
}

func (w *worker) stop() {
	w.end.Store(true)
	if !w.failed {
		testutil.Check(w.p.t, testutil.Receive(w.p.t, "the host beside the changes", w.ended))
	}
}
