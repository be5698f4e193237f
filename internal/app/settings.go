package app

import (
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// settings returns the setters of the keys outside lists that need no restart.
func (s *Server) settings() map[string]*engine.Setter {
	discovery := &engine.Setter{Set: s.listeners.SetDiscovery}
	metrics, web := &engine.Setter{Set: s.setMetrics}, &engine.Setter{Set: s.setWeb}
	tcp, rdma := &engine.Setter{Set: s.updateTCP}, &engine.Setter{Set: s.updateRDMA}
	// Only the files themselves, requests and a stop look at these.
	other := &engine.Setter{Set: func(*config.Config) error { return nil }}
	return map[string]*engine.Setter{
		"log.level": {Set: func(c *config.Config) error {
			if s.opts.Level != nil {
				s.opts.Level.Set(c.Log.Level)
			}
			return nil
		}},
		"log.slow_io": {Set: func(c *config.Config) error {
			s.target.SetSlowIO(c.Log.SlowIO)
			return nil
		}},
		"control.roles": {Set: s.setRoles}, "audit.path": {Set: s.setAudit},

		"discovery.nqn": discovery, "discovery.security": discovery,
		"discovery.mdns": discovery, "discovery.mdns_interfaces": discovery,

		"metrics.listen": metrics, "metrics.certificate": metrics, "metrics.key": metrics,
		"metrics.token": metrics,
		"web.listen":    web, "web.certificate": web, "web.key": web, "web.token": web,
		"web.targets": {Set: s.setWebTargets},

		"tcp.queue_depth": tcp, "tcp.queue_memory": tcp, "tcp.max_connections": tcp,
		"tcp.max_connections_per_host": tcp, "tcp.header_digest": tcp,
		"tcp.data_digest": tcp,

		"rdma.queue_depth": rdma, "rdma.queue_memory": rdma, "rdma.max_connections": rdma,
		"rdma.max_connections_per_host": rdma,

		"include": other, "managed": other, "managed_paths": other,
		"secure_only": other, "shutdown_timeout": other,
	}
}

func (s *Server) updateTCP(c *config.Config) error {
	s.transports[nvme.TransportTCP].(*tcp.Transport).Update(c.TCP)
	return nil
}

func (s *Server) updateRDMA(c *config.Config) error {
	if t, ok := s.transports[nvme.TransportRDMA].(*rdma.Transport); ok {
		t.Update(c.RDMA)
	}
	return nil
}
