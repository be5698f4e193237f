package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
)

// setMetrics serves /metrics where and how a configuration says, or not at all.
func (s *Server) setMetrics(c *config.Config) (err error) {
	if err := renew(c, &c.Metrics, &s.metricsTLS); err != nil {
		return err
	}
	if s.metrics != nil {
		err = s.metrics.Close()
		s.metrics = nil
	}
	if err != nil || !c.Metrics.Listen.IsValid() {
		return err
	}
	refused := func(remote netip.AddrPort, err error) {
		s.peers.Peer(remote).Warn("metrics request refused", "err", err)
	}
	at := metrics.Config{Listen: c.Metrics.Listen, Refused: refused}
	scheme := "http"
	if c.Metrics.Certificate != "" {
		scheme = "https"
		at.Wrap = func(l net.Listener) net.Listener {
			return control.NewTLSListener(l, s.metricsTLS.Load, refused)
		}
	}
	if c.Metrics.Token != (config.Token{}) {
		at.Admits = c.Metrics.Token.Is
	}
	src := metrics.Source{
		Version: s.opts.Version, Namespaces: s.target.Stats, Controllers: s.target.Controllers,
		Limits:     s.target.Limits,
		Transports: map[string]func() fabric.Usage{},
		Refusals:   s.recorder.Kinds, AuditLost: s.audit.lost.Load,
		Pending: func() int { return len(s.namespaces.waiting()) },
		Storage: s.storageMetrics, Listeners: s.listenerMetrics,
	}
	for name, t := range s.transports {
		src.Transports[name.String()] = t.Usage
	}
	src.ReactorMemory, src.Latencies = s.memoryUsage, s.latencies
	if s.metrics, err = metrics.Listen(at, src, s.log); err != nil {
		return c.Problem("metrics.listen", err.Error(), "")
	}
	s.log.Info("metrics are served", "url",
		fmt.Sprintf("%s://%v/metrics", scheme, s.metrics.Addr()))
	return nil
}

func (s *Server) storageMetrics() (list []metrics.Storage) {
	for _, n := range all(s.current()) {
		list = append(list, metrics.Storage{
			SubNQN: n.nqn, NSID: n.NSID, Backend: n.Backend, Path: n.path(),
		})
	}
	return list
}

func (s *Server) listenerMetrics() (list []metrics.Listener) {
	for _, l := range s.listenerStates() {
		list = append(list, metrics.Listener{
			Transport: l.Transport, Address: l.Address, Up: l.State == "up",
		})
	}
	return list
}

// usageTimeout is how long a reactor may take to say what its memory is used for.
const usageTimeout = time.Second

// memoryUsage returns the use of the data memory of each reactor, nil if one does not answer.
func (s *Server) memoryUsage() (list []mem.PoolUsage) {
	ctx, cancel := context.WithTimeout(context.Background(), usageTimeout)
	defer cancel()
	reactors, err := s.Reactors(ctx)
	if err != nil {
		return nil
	}
	for _, r := range reactors {
		list = append(list, r.Memory)
	}
	return list
}
