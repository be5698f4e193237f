package app

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
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
	src.Reactors, src.Latencies, src.Hosts = s.reactorMetrics, s.latencies, s.hostMetrics
	src.Authentications = s.target.Authentications
	src.Devices = s.deviceMetrics
	src.PortCounters = func() []metrics.PortCounter { return s.ports.counters(s.usageTimeout) }
	src.Unsaved, src.Expiries = s.state.Failed, s.expiries
	if err = s.patiently(func() (err error) {
		s.metrics, err = metrics.Listen(at, src, s.log)
		return err
	}); err != nil {
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
