package app

import (
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// settings returns the setters of the sections and keys outside lists that need no restart.
func (s *Server) settings() engine.Setters {
	// Only the files themselves, requests and a stop look at these.
	onlyRead := &engine.Setter{Set: func(*config.Config) error { return nil }}
	return engine.Setters{
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
		"control.roles": {Set: s.setRoles},
		"audit":         {Set: s.setAudit},
		"discovery":     {Set: s.listeners.SetDiscovery},
		"metrics":       {Set: s.setMetrics},
		"web":           {Set: s.setWeb},
		"web.targets":   {Set: s.setWebTargets},
		"tcp":           {Set: s.updateTCP},
		"rdma":          {Set: s.updateRDMA},

		"include": onlyRead, "managed": onlyRead, "managed_paths": onlyRead,
		"secure_only": onlyRead, "shutdown_timeout": onlyRead,
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

// setAudit writes records to the file that a configuration names.
func (s *Server) setAudit(c *config.Config) error {
	if err := s.audit.Open(c.Audit.Path, s.log); err != nil {
		return c.Problem("audit.path", err.Error(),
			"The target must be able to create the file and to write to it.")
	}
	return nil
}
