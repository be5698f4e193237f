package app

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// modifyFile makes a change of a key outside of lists.
func (tr *transition) modifyFile(c config.Change) error {
	for _, k := range c.Keys {
		if k.Restart {
			continue
		}
		set, ok := fileKeys[k.Key]
		if !ok {
			return fmt.Errorf("%s cannot be changed while the target runs", k.Key)
		}
		if before := tr.s.config.Load(); before != nil { // at the start there is none
			tr.done(k.Key, func() error { return set(tr.s, before) })
		}
		if err := set(tr.s, tr.next); err != nil {
			return err
		}
	}
	return nil
}

// fileKeys has what changes the keys outside of lists that need no restart.
var fileKeys = map[string]func(*Server, *config.Config) error{
	"log.level": func(s *Server, c *config.Config) error {
		if s.opts.Level != nil {
			s.opts.Level.Set(c.Log.Level)
		}
		return nil
	},
	"log.slow_io": func(s *Server, c *config.Config) error {
		s.target.SetSlowIO(c.Log.SlowIO)
		return nil
	},
	"discovery.security": (*Server).setDiscovery,
	"metrics.listen":     (*Server).setMetrics, "metrics.certificate": (*Server).setMetrics,
	"metrics.key": (*Server).setMetrics, "metrics.token": (*Server).setMetrics,
	"web.listen": (*Server).setWeb, "web.certificate": (*Server).setWeb,
	"web.key": (*Server).setWeb, "web.token": (*Server).setWeb,
	"control.roles": (*Server).setRoles, "audit.path": (*Server).setAudit,
	"discovery.nqn": (*Server).setDiscovery, "discovery.referrals": (*Server).setDiscovery,
	"discovery.mdns": (*Server).setDiscovery, "discovery.mdns_interfaces": (*Server).setDiscovery,
	"tcp.queue_depth": updateTCP, "tcp.queue_memory": updateTCP, "tcp.max_connections": updateTCP,
	"tcp.max_connections_per_host": updateTCP, "tcp.header_digest": updateTCP,
	"tcp.data_digest": updateTCP,

	"rdma.queue_depth": updateRDMA, "rdma.queue_memory": updateRDMA,
	"rdma.max_connections": updateRDMA, "rdma.max_connections_per_host": updateRDMA,

	// Only the files themselves, requests and a stop look at these.
	"include":          func(*Server, *config.Config) error { return nil },
	"managed":          func(*Server, *config.Config) error { return nil },
	"managed_paths":    func(*Server, *config.Config) error { return nil },
	"secure_only":      func(*Server, *config.Config) error { return nil },
	"shutdown_timeout": func(*Server, *config.Config) error { return nil },
}

func updateTCP(s *Server, c *config.Config) error {
	s.transports[nvme.TransportTCP].(*tcp.Transport).Update(c.TCP)
	return nil
}

func updateRDMA(s *Server, c *config.Config) error {
	if t, ok := s.transports[nvme.TransportRDMA].(*rdma.Transport); ok {
		t.Update(c.RDMA)
	}
	return nil
}
