package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/web"
)

// endpoint serves metrics or the page.
type endpoint[T interface {
	comparable
	io.Closer
	Addr() netip.AddrPort
}] struct {
	tls    atomic.Pointer[tls.Config]
	server T // nil: not wanted
}

// close ends the server, if there is one.
func (e *endpoint[T]) close() (err error) {
	var none T
	if e.server != none {
		err = e.server.Close()
		e.server = none
	}
	return err
}

// set serves the endpoint to, which is under the given key in c, or stops serving. It returns the
// URL. Each client that is not served is an event of the kind refused.
func (e *endpoint[T]) set(s *Server, c *config.Config, key string, to *config.Endpoint,
	refused *event.Kind, listen func(httpd.Endpoint) (T, error),
) (url string, err error) {
	if err := e.renew(c, to); err != nil {
		return "", err
	}
	if err := e.close(); err != nil || !to.Listen.IsValid() {
		return "", err
	}
	at := httpd.Endpoint{Listen: to.Listen, Refused: func(remote netip.AddrPort, err error) {
		s.peers.Peer(remote).Report(refused, "err", err)
	}}
	scheme := "http"
	if to.Certificate != "" {
		scheme, at.TLS = "https", e.tls.Load
	}
	if to.Token != (config.Token{}) {
		at.Admits = to.Token.Is
	}
	if err := s.patiently(func() (err error) {
		e.server, err = listen(at)
		return err
	}); err != nil {
		return "", c.Problem(key+".listen", err.Error(), "")
	}
	return fmt.Sprintf("%s://%v/", scheme, e.server.Addr()), nil
}

// renew reads the certificate.
func (e *endpoint[T]) renew(c *config.Config, to *config.Endpoint) error {
	if to.Certificate == "" {
		return nil
	}
	t, err := check.CertificatesOf(to).PublicServer()
	if file, ok := errors.AsType[*httpd.FileError](err); ok {
		return check.CertificateProblem(c, c, file)
	}
	e.tls.Store(t)
	return nil
}

// renewCertificates reads the certificates of the control interface, of metrics and of the page
// again. If the new ones are unusable, the current ones stay.
func (s *Server) renewCertificates(c *config.Config) error {
	if control := s.control.Load(); control != nil {
		err := control.Renew()
		if file, ok := errors.AsType[*httpd.FileError](err); ok {
			return check.CertificateProblem(c, s.atStart, file)
		}
		if err != nil {
			return err
		}
	}
	// setMetrics and setWeb read the certificates of addresses that change.
	var err error
	if c.Metrics == s.current().Metrics {
		err = s.metrics.renew(c, &c.Metrics)
	}
	if err == nil && c.Web == s.current().Web {
		err = s.web.renew(c, &c.Web)
	}
	return err
}

// setRoles gives clients of the control interface the roles of a configuration.
func (s *Server) setRoles(c *config.Config) error {
	r, ps := check.Roles(c)
	if s.engine.Started() { // at the start probe has logged them
		for _, p := range ps {
			s.log.Warn(p.Error())
		}
	}
	s.roles.Store(r)
	return nil
}

// setWeb serves the page as configured, or not at all.
func (s *Server) setWeb(c *config.Config) error {
	src := web.Source{Source: s.source(), Plan: s.engine.TryPlan}
	src.Latency = s.latencyStates(latencySummary)
	url, err := s.web.set(s, c, "web", &c.Web, event.PageRefused,
		func(at httpd.Endpoint) (*web.Server, error) {
			return web.Listen(at, src, webTargets(c), s.log)
		})
	if url != "" {
		s.log.Info("the page is served", "url", url)
	}
	return err
}

// setWebTargets sets the other targets on the page as configured.
func (s *Server) setWebTargets(c *config.Config) error {
	if s.web.server != nil {
		s.web.server.SetTargets(webTargets(c))
	}
	return nil
}

func webTargets(c *config.Config) (list []web.Target) {
	for _, w := range c.WebTargets {
		list = append(list, web.Target{Name: w.Name, URL: w.URL, Token: w.Token, CA: w.CA})
	}
	return list
}

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
	url, err := s.metrics.set(s, c, "metrics", &c.Metrics, event.MetricsRefused,
		func(at httpd.Endpoint) (*httpd.Server, error) { return metrics.Listen(at, src, s.log) })
	if url != "" {
		s.log.Info("metrics are served", "url", url+"metrics")
	}
	return err
}
