// Package workers runs the reactors of a target, with data memory, handler and transport groups.
package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// Config has the surroundings of Workers.
type Config struct {
	Target     *target.Target
	Transports []fabric.Transport
	Log        *slog.Logger
	// Peers is the log of connections that are refused.
	Peers *ratelog.Logger
	// CPUs has the CPU of each reactor, -1 for one that is not pinned.
	CPUs []int
	// Spin is the time for which an idle reactor polls.
	Spin time.Duration
	// Memory is the data memory of each reactor, in bytes.
	Memory int
	// Failed is called on the goroutine of a reactor that has ended with an error.
	Failed func(error)
}

// Workers are the reactors. The zero value has none.
type Workers struct {
	list  []*worker
	peers *ratelog.Logger
	next  atomic.Uint64
}

// Start makes and runs the reactors. The caller still calls Stop and Close after an error.
func (ws *Workers) Start(c Config) error {
	// A reactor occupies a processor of the Go scheduler for as long as it has work.
	if limit := len(c.CPUs) + 2; runtime.GOMAXPROCS(0) < limit {
		runtime.GOMAXPROCS(limit)
	}
	ws.peers = c.Peers
	for i, cpu := range c.CPUs {
		w, err := newWorker(&c, i, cpu)
		if err != nil {
			return err
		}
		ws.list = append(ws.list, w)
		w.run(c.Failed)
	}
	return nil
}

// Loop returns the loop of a reactor.
func (ws *Workers) Loop(index int) fabric.Loop { return ws.list[index].loop }

// Disconnect ends every connection and waits for that.
func (ws *Workers) Disconnect() {
	var drained []<-chan struct{}
	for _, w := range ws.list {
		drained = append(drained, w.disconnect())
	}
	for _, d := range drained {
		<-d
	}
}

// Stop ends the reactors.
func (ws *Workers) Stop() error {
	var errs []error
	for _, w := range ws.list {
		errs = append(errs, w.stop())
	}
	return errors.Join(errs...)
}

// Close frees the resources of reactors that have stopped.
func (ws *Workers) Close() error {
	var errs []error
	for _, w := range ws.list {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

// Place gives a new connection to the reactor with the least load. Of reactors with the same load
// it takes a near one, on the CPU where the packets of the connection arrive or on the NUMA node of
// its device, else the next in turn. Admin queues need not be spread: RDMA recognizes one here
// and it goes to the first reactor, TCP only later and does not count it from then on.
func (ws *Workers) Place(conn fabric.Conn) {
	info := conn.Info()
	w := ws.list[0]
	if info.QID != 0 {
		n, near := int(ws.next.Add(1)%uint64(len(ws.list))), nearness(conn)
		w = ws.list[n]
		for _, other := range append(ws.list[n+1:len(ws.list):len(ws.list)],
			ws.list[:n]...) {
			more := other.groups[info.Transport].Load() - w.groups[info.Transport].Load()
			if more < 0 || more == 0 && near(other) && !near(w) {
				w = other
			}
		}
	}
	if err := w.groups[info.Transport].Adopt(conn); err != nil {
		ws.peers.Peer(info.Remote).Report(event.ConnectionRefused, "err", err)
	}
}

// nearness returns a function that reports whether a reactor is known to be near a connection.
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

// States returns the activity and the resources of each reactor. Any goroutine may call it between
// Start and Stop. The error is that of ctx, which ended before a reactor answered.
func (ws *Workers) States(ctx context.Context) ([]observed.Reactor, error) {
	list, answers := make([]observed.Reactor, len(ws.list)), make(chan struct{}, len(ws.list))
	for i, w := range ws.list {
		w.loop.Post(func() {
			list[i] = w.describe()
			list[i].Index = i
			answers <- struct{}{}
		})
	}
	for range ws.list {
		select {
		case <-answers:
		case <-ctx.Done():
			return nil, fmt.Errorf("a reactor does not answer: %w", context.Cause(ctx))
		}
	}
	return list, nil
}

// describe is called by the reactor.
func (w *worker) describe() observed.Reactor {
	m, l := w.memory.Usage(), w.loop.Stats()
	steps := map[string]uint64{}
	for i, name := range w.pollers {
		steps[name] = l.Steps[i]
	}
	return observed.Reactor{
		CPU: w.cpu, AsleepSeconds: l.Asleep.Seconds(), Polls: l.Iterations, EmptyPolls: l.Empty,
		MemoryBytes: int64(m.Size), MemoryUsedBytes: int64(m.Used), WaitingCommands: m.Waiters,
		BusySeconds: (l.Up - l.Asleep - l.Polling).Seconds(), PollingSeconds: l.Polling.Seconds(),
		Steps: steps, OrphanedBytes: int64(m.Orphaned), Timers: w.loop.Timers(),
	}
}
