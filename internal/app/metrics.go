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
		Version: s.opts.Version, Namespaces: s.namespaces, Controllers: s.target.Controllers,
		Limits:     s.target.Limits,
		Transports: map[string]func() fabric.Usage{},
		Refusals:   s.recorder.Kinds, AuditLost: s.audit.lost.Load,
		Listeners: s.listenerMetrics,
	}
	for name, t := range s.transports {
		src.Transports[name.String()] = t.Usage
	}
	src.Reactors, src.Latencies, src.Hosts = s.reactorMetrics, s.latencies, s.hostMetrics
	src.Authentications = s.target.Authentications
	src.Devices = s.deviceMetrics
	src.PortCounters = s.portCounters
	src.Unsaved, src.Expiries = s.state.Failed, s.expiries
	url, err := s.metrics.set(s, c, "metrics", &c.Metrics, "metrics request refused",
		func(at httpd.Endpoint) (*httpd.Server, error) { return metrics.Listen(at, src, s.log) })
	if url != "" {
		s.log.Info("metrics are served", "url", url+"metrics")
	}
	return err
}

func (s *Server) listenerMetrics() (list []metrics.Listener) {
	for _, l := range s.listeners.States() {
		list = append(list, metrics.Listener{
			Transport: l.Transport, Address: l.Address, Up: l.State == "up",
		})
	}
	return list
}
