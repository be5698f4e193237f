package app

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// modifyFile changes a key outside lists.
func (tr *transition) modifyFile(c config.Change) error {
	done := map[*fileSetter]bool{}
	for _, k := range c.Keys {
		if k.Restart {
			continue
		}
		setter, ok := fileKeys[k.Key]
		if !ok {
			return fmt.Errorf("%s cannot be changed while the target runs", k.Key)
		}
		if done[setter] {
			continue
		}
		done[setter] = true
		if err := tr.setFileKey(k.Key, setter.set); err != nil {
			return err
		}
	}
	return nil
}

// setFileKey makes the server follow a key or an object of the next configuration.
func (tr *transition) setFileKey(what string, set func(*Server, *config.Config) error) error {
	if before := tr.s.config.Load(); before != nil { // at the start there is none
		tr.done(what, func() error { return set(tr.s, before) })
	}
	return set(tr.s, tr.next)
}

// fileSetter makes the server follow some keys of a configuration.
type fileSetter struct {
	set func(*Server, *config.Config) error
}

var (
	discoveryKeys = &fileSetter{func(s *Server, c *config.Config) error {
		return s.listeners.SetDiscovery(c)
	}}
	metricsKeys = &fileSetter{(*Server).setMetrics}
	webKeys     = &fileSetter{(*Server).setWeb}
	tcpKeys     = &fileSetter{updateTCP}
	rdmaKeys    = &fileSetter{updateRDMA}
	// Only the files themselves, requests and a stop look at these.
	otherKeys = &fileSetter{func(*Server, *config.Config) error { return nil }}
)

// fileKeys has the setters of the keys outside lists that need no restart. A setter is called once
// even if several of its keys change, so it opens everything once.
var fileKeys = map[string]*fileSetter{
	"log.level": {func(s *Server, c *config.Config) error {
		if s.opts.Level != nil {
			s.opts.Level.Set(c.Log.Level)
		}
		return nil
	}},
	"log.slow_io": {func(s *Server, c *config.Config) error {
		s.target.SetSlowIO(c.Log.SlowIO)
		return nil
	}},
	"control.roles": {(*Server).setRoles}, "audit.path": {(*Server).setAudit},

	"discovery.nqn": discoveryKeys, "discovery.security": discoveryKeys,
	"discovery.mdns": discoveryKeys, "discovery.mdns_interfaces": discoveryKeys,

	"metrics.listen": metricsKeys, "metrics.certificate": metricsKeys, "metrics.key": metricsKeys,
	"metrics.token": metricsKeys,
	"web.listen":    webKeys, "web.certificate": webKeys, "web.key": webKeys, "web.token": webKeys,
	"web.targets": {(*Server).setWebTargets},

	"tcp.queue_depth": tcpKeys, "tcp.queue_memory": tcpKeys, "tcp.max_connections": tcpKeys,
	"tcp.max_connections_per_host": tcpKeys, "tcp.header_digest": tcpKeys,
	"tcp.data_digest": tcpKeys,

	"rdma.queue_depth": rdmaKeys, "rdma.queue_memory": rdmaKeys, "rdma.max_connections": rdmaKeys,
	"rdma.max_connections_per_host": rdmaKeys,

	"include": otherKeys, "managed": otherKeys, "managed_paths": otherKeys,
	"secure_only": otherKeys, "shutdown_timeout": otherKeys,
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
