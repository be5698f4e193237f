package app

import (
	"context"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
)

// ReactorUsage has the resources in use by a reactor.
type ReactorUsage struct {
	Memory mem.PoolUsage // its data memory
	Timers int           // neither run nor stopped
	Loop   reactor.Stats
}

// Reactors returns the resources in use by each reactor. Any goroutine may call it between Start
// and Stop. The error is the error of ctx, if it ended before a reactor answered.
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
