package app

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
)

// startMetrics serves /metrics if an address is configured.
func (s *Server) startMetrics() error {
	c := s.opts.Config
	if !c.Metrics.Listen.IsValid() {
		return nil
	}
	src := metrics.Source{
		Version: s.opts.Version, Namespaces: s.target.Stats, Controllers: s.target.Controllers,
		Transports: map[string]func() fabric.Usage{},
		Pending:    func() int { return len(s.namespaces.waiting()) },
	}
	for name, t := range s.transports {
		if u, ok := t.(fabric.UsageReporter); ok {
			src.Transports[name.String()] = u.Usage
		}
	}
	src.ReactorMemory = s.memoryUsage
	var err error
	if s.metrics, err = metrics.Listen(c.Metrics.Listen, src, s.log); err != nil {
		return c.Problem("metrics.listen", err.Error(), "")
	}
	s.log.Info("metrics are served", "url", fmt.Sprintf("http://%v/metrics", s.metrics.Addr()))
	return nil
}

// usageTimeout is how long a reactor may take to say what its memory is used for.
const usageTimeout = time.Second

// memoryUsage returns the use of the data memory of each reactor, zero of one that does not answer.
func (s *Server) memoryUsage() []mem.PoolUsage {
	answers := make([]chan mem.PoolUsage, len(s.workers))
	for i, w := range s.workers {
		answer := make(chan mem.PoolUsage, 1)
		answers[i] = answer
		w.loop.Post(func() { answer <- w.memory.Usage() })
	}
	timeout := time.After(usageTimeout)
	list := make([]mem.PoolUsage, len(s.workers))
	for i, answer := range answers {
		select {
		case list[i] = <-answer:
		case <-timeout:
			return list
		}
	}
	return list
}
