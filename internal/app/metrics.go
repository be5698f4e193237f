package app

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
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
	for range s.workers {
		src.ReactorMemory = append(src.ReactorMemory, int64(c.Reactors.Memory))
	}
	var err error
	if s.metrics, err = metrics.Listen(c.Metrics.Listen, src, s.log); err != nil {
		return c.Problem("metrics.listen", err.Error(), "")
	}
	s.log.Info("metrics are served", "url", fmt.Sprintf("http://%v/metrics", s.metrics.Addr()))
	return nil
}
