package app

import "context"

// ReactorUsage is what a reactor has in use.
type ReactorUsage struct {
	DataMemory int // bytes of its data memory that are allocated
	Timers     int // that have not run
}

// Reactors returns what each reactor has in use. Any goroutine may call it between Start and Stop;
// the error is that of ctx, which ended before a reactor answered.
func (s *Server) Reactors(ctx context.Context) (list []ReactorUsage, err error) {
	for _, w := range s.workers {
		answer := make(chan ReactorUsage, 1)
		w.loop.Post(func() {
			all := len(w.memory.Region().Bytes()) - w.memory.Reserve()
			answer <- ReactorUsage{DataMemory: all - w.memory.Available(), Timers: w.loop.Timers()}
		})
		select {
		case u := <-answer:
			list = append(list, u)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return list, nil
}
