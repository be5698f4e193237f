package app

import (
	"context"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
)

// ReactorUsage is what a reactor has in use.
type ReactorUsage struct {
	Memory mem.PoolUsage // its data memory
	Timers int           // that have neither run nor been stopped
	Loop   reactor.Stats
}

// Reactors returns what each reactor has in use. Any goroutine may call it between Start and Stop;
// the error is that of ctx, which ended before a reactor answered.
func (s *Server) Reactors(ctx context.Context) ([]ReactorUsage, error) {
	list, answers := make([]ReactorUsage, len(s.workers)), make(chan struct{}, len(s.workers))
	for i, w := range s.workers {
		w.loop.Post(func() {
			list[i] = ReactorUsage{w.memory.Usage(), w.loop.Timers(), w.loop.Stats()}
			answers <- struct{}{}
		})
	}
	for range s.workers {
		select {
		case <-answers:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return list, nil
}
