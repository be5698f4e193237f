package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/check"
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

type workerConfig struct {
	index, cpu int
	spin       time.Duration
	memory     int
	target     *target.Target
	transports []fabric.Transport
	log        *slog.Logger
}

// newWorker makes a worker that does not run yet. On error everything is closed again.
func newWorker(c workerConfig) (w *worker, err error) {
	w = &worker{
		cpu: c.cpu, node: sys.NodeOfCPU(c.cpu),
		groups: map[nvme.TransportType]fabric.Group{}, ended: make(chan error, 1),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("reactor %d: %w", c.index, err), w.close())
			w = nil
		}
	}()
	if w.loop, err = reactor.New(reactor.Config{
		Index: c.index, CPU: c.cpu, Spin: c.spin,
	}); err != nil {
		return w, err
	}
	arena, err := mem.NewArena("data", c.memory)
	if err != nil {
		return w, err
	}
	w.memory = mem.NewPool(arena, min(c.memory/8, mostReserve))
	if w.node != sys.NoNode {
		if err := w.memory.Region().Prefer(w.node); err != nil { // containers may forbid it
			c.log.Warn("data memory is not bound to the reactor's NUMA node", "reactor", c.index,
				"err", err)
		}
	}
	w.handler, err = c.target.NewHandler(target.HandlerConfig{
		Loop: w.loop, Index: c.index,
		Memory: w.memory, EventFD: w.loop.EventFD(),
	})
	if err != nil {
		return w, err
	}
	for _, t := range c.transports {
		g, err := t.NewGroup(fabric.GroupConfig{
			Loop: w.loop, Handler: w.handler, Memory: w.memory,
			Index: c.index,
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

// listen listens at an address for the connections of a port.
func (s *Server) listen(at fabric.Addr, portID uint16) (fabric.Listener, error) {
	t := s.transports[at.Transport]
	switch {
	case t == nil:
		return nil, fmt.Errorf("listen at %v: %w", at, verbs.ErrNotBuilt)
	case at.Transport == nvme.TransportRDMA && !s.external: // tests have no real device
		if err := check.Memlock(len(s.workers), s.atStart.Reactors.Memory); err != nil {
			return nil, fmt.Errorf("listen at %v: %w", at, err)
		}
	}
	return t.Listen(at, portID, s.place)
}

// place gives a new connection to the reactor with the least load. Of reactors with the same load
// it takes a near one, on the CPU where the packets of the connection arrive or on the NUMA node of
// its device, else the next in turn. An admin queue is no load worth spreading: RDMA recognizes it
// here and it goes to the first reactor, TCP only later and does not count it from then on.
func (s *Server) place(conn fabric.Conn) {
	info := conn.Info()
	w := s.workers[0]
	if info.QID != 0 {
		n, near := int(s.next.Add(1)%uint64(len(s.workers))), nearness(conn)
		w = s.workers[n]
		for _, other := range append(s.workers[n+1:len(s.workers):len(s.workers)],
			s.workers[:n]...) {
			more := other.groups[info.Transport].Load() - w.groups[info.Transport].Load()
			if more < 0 || more == 0 && near(other) && !near(w) {
				w = other
			}
		}
	}
	if err := w.groups[info.Transport].Adopt(conn); err != nil {
		s.peers.Peer(info.Remote).Warn("connection refused", "err", err)
	}
}

// nearness returns a function that reports whether a reactor is near to a connection, as far as
// known.
func nearness(conn fabric.Conn) func(w *worker) bool {
	cpu, node := -1, sys.NoNode
	if c, ok := conn.(fabric.CPUConn); ok {
		cpu = c.CPU()
	}
	if c, ok := conn.(fabric.NodeConn); ok {
		node = c.Node()
	}
	return func(w *worker) bool {
		return cpu >= 0 && w.cpu == cpu || node != sys.NoNode &&
			w.node == node
	}
}
