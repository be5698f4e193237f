package live

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

func listen(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }

func (p *place) parse(m *model) *config.Config {
	c, err := app.Parse(p.name, p.text(m), nil)
	p.must(err)
	return c
}

// worker is a host that writes and reads a namespace that no change touches.
type worker struct {
	p        *place
	c        *host.Controller
	q        *host.Queue
	end      atomic.Bool
	ended    chan error
	failed   bool
	commands atomic.Int64
}

func startWorker(p *place) *worker {
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	c, err := host.Connect(ctx, p.transport("tcp 1"), host.Options{
		HostNQN: hostNQN(0), HostID: [16]byte{1}, SubNQN: anchorNQN, Timeout: answerLimit,
	})
	p.must(err)
	q, err := c.OpenQueue(ctx, 1, 32)
	p.must(err)
	out, err := c.Map(4096)
	p.must(err)
	in, err := c.Map(4096)
	p.must(err)
	w := &worker{p: p, c: c, q: q, ended: make(chan error, 1)}
	go func() { w.ended <- w.run(out, in) }()
	return w
}

// run writes and reads until the end or the first error.
func (w *worker) run(out, in []byte) error {
	for i := 0; !w.end.Load(); i++ {
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		for j := range out {
			out[j] = byte(i + j*i)
		}
		block := uint64(i % 128 * 8)
		err := w.q.Write(ctx, 1, block, 8, out, 0)
		if err == nil {
			err = w.q.Read(ctx, 1, block, 8, in)
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

// check fails if the worker has seen an error.
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
		if err := <-w.ended; err != nil {
			w.p.t.Errorf("the host beside the changes: %v", err)
		}
	}
	w.c.Close()
	_ = w.q.Close()
}
