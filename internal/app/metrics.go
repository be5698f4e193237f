package app

import (
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
)

// setMetrics serves /metrics as configured, or not at all.
func (s *Server) setMetrics(c *config.Config) error {
	src := metrics.Source{
		Source: s.source(), Version: s.opts.Version, Limits: s.target.Limits,
		Transports: map[string]func() fabric.Usage{}, Kinds: s.recorder.Kinds,
		AuditLost: s.audit.Lost, Latencies: s.latencies, Paths: s.hostMetrics,
		Authentications: s.target.Authentications, Devices: s.deviceMetrics,
		Unsaved: s.state.Failed, Expiries: s.expiries, Patience: s.usageTimeout,
		Pending: func() int { return len(s.engine.Volumes.Pending()) },
	}
	src.Namespaces = s.namespaces
	for name, t := range s.transports {
		src.Transports[name.String()] = t.Usage
	}
	url, err := s.metrics.set(s, c, "metrics", &c.Metrics, "metrics request refused",
		func(at httpd.Endpoint) (*httpd.Server, error) { return metrics.Listen(at, src, s.log) })
	if url != "" {
		s.log.Info("metrics are served", "url", url+"metrics")
	}
	return err
}
