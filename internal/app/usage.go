package app

import (
	"context"
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Reactors returns the activity and the resources of each reactor. Any goroutine may call it
// between Start and Stop. The error is that of ctx, which ended before a reactor answered.
func (s *Server) Reactors(ctx context.Context) ([]observed.Reactor, error) {
	list, answers := make([]observed.Reactor, len(s.workers)), make(chan struct{}, len(s.workers))
	for i, w := range s.workers {
		w.loop.Post(func() {
			list[i] = w.describe()
			list[i].Index = i
			answers <- struct{}{}
		})
	}
	for range s.workers {
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
		BusySeconds: (l.Up - l.Asleep - l.Vain).Seconds(), PollingSeconds: l.Vain.Seconds(),
		Steps: steps, OrphanedBytes: int64(m.Orphaned), Timers: w.loop.Timers(),
	}
}
