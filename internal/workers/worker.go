package workers

import (
	"context"
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// worker is one reactor with its data memory, a handler, and a group of each transport.
type worker struct {
	cpu     int // the reactor is pinned to it, or -1
	node    int // of that CPU's memory, sys.NoNode if there is no choice
	loop    *reactor.Reactor
	memory  *mem.Pool
	handler *target.Handler
	groups  map[nvme.TransportType]fabric.Group
	pollers []string // names of the pollers, in order

	cancel context.CancelFunc // nil until run
	ended  chan error
}

// mostReserve is the largest reserve for in-capsule data in the data memory of a reactor, in bytes;
// see mem.Pool. In small memories the reserve is an eighth.
const mostReserve = 4 << 20

// newWorker makes a worker that does not run yet. On error everything is closed again.
func newWorker(c *Config, index, cpu int) (w *worker, err error) {
	w = &worker{
		cpu: cpu, node: sys.NodeOfCPU(cpu),
		groups: map[nvme.TransportType]fabric.Group{}, ended: make(chan error, 1),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("reactor %d: %w", index, err), w.close())
			w = nil
		}
	}()
	if w.loop, err = reactor.New(reactor.Config{
		Index: index, CPU: cpu, Spin: c.Spin,
	}); err != nil {
		return w, err
	}
	arena, err := mem.NewArena("data", c.Memory)
	if err != nil {
		return w, err
	}
	w.memory = mem.NewPool(arena, min(c.Memory/8, mostReserve))
	if w.node != sys.NoNode {
		if err := w.memory.Region().Prefer(w.node); err != nil { // containers may forbid it
			c.Log.Warn("data memory is not bound to the reactor's NUMA node", "reactor", index,
				"err", err)
		}
	}
	w.handler, err = c.Target.NewHandler(target.HandlerConfig{
		Loop: w.loop, Index: index,
		Memory: w.memory, EventFD: w.loop.EventFD(),
	})
	if err != nil {
		return w, err
	}
	for _, t := range c.Transports {
		g, err := t.NewGroup(fabric.GroupConfig{
			Loop: w.loop, Handler: w.handler, Memory: w.memory,
			Index: index,
		})
		if err != nil {
			return w, err
		}
		w.groups[t.Type()] = g
		w.loop.Attach(g)
		w.pollers = append(w.pollers, t.Type().String())
	}
	w.loop.Attach(w.handler)
	w.pollers = append(w.pollers, "storage")
	return w, nil
}

// run starts the reactor. failed is called on its goroutine if it ends with an error.
func (w *worker) run(failed func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		err := w.loop.Run(ctx)
		w.ended <- err
		if err != nil {
			failed(err)
		}
	}()
}

// disconnect ends every connection; the channel is closed when the last one has ended.
func (w *worker) disconnect() <-chan struct{} {
	done := make(chan struct{})
	w.loop.Post(func() {
		left := len(w.groups)
		if left == 0 {
			close(done)
		}
		for _, g := range w.groups {
			g.Shutdown(func() {
				if left--; left == 0 {
					close(done)
				}
			})
		}
	})
	return done
}

// stop ends the reactor, if it runs.
func (w *worker) stop() error {
	if w.cancel == nil {
		return nil
	}
	w.cancel()
	w.cancel = nil
	return <-w.ended
}

// close frees the resources of a stopped worker.
func (w *worker) close() error {
	var errs []error
	for _, g := range w.groups {
		errs = append(errs, g.Close())
	}
	if w.memory != nil {
		errs = append(errs, w.memory.Close())
	}
	if w.loop != nil {
		errs = append(errs, w.loop.Close())
	}
	return errors.Join(errs...)
}
