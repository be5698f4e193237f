package app

import (
	"fmt"
	"net/netip"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
)

// startMetrics serves /metrics if the configuration wants it.
func (s *Server) startMetrics() error {
	c := s.opts.Config
	if c.Metrics.Listen == "" {
		return nil
	}
	addr, err := netip.ParseAddrPort(c.Metrics.Listen)
	if err != nil {
		return fmt.Errorf("metrics.listen: %w", err)
	}
	src := metrics.Source{
		Version: s.opts.Version, Namespaces: s.target.Stats, Controllers: s.target.Controllers,
		Transports: map[string]func() fabric.Usage{},
	}
	for name, t := range s.transports {
		if u, ok := t.(fabric.UsageReporter); ok {
			src.Transports[name.String()] = u.Usage
		}
	}
	for range s.workers {
		src.ReactorMemory = append(src.ReactorMemory, int64(c.Reactors.Memory))
	}
	if s.metrics, err = metrics.Listen(addr, src, s.log); err != nil {
		return c.Problem("metrics.listen", err.Error(), "")
	}
	s.log.Info("metrics are served", "at", fmt.Sprintf("http://%v/metrics", s.metrics.Addr()))
	return nil
}
