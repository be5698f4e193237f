package app

import (
	"crypto/tls"
	"errors"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// renewBefore is when a certificate is warned of that ends soon.
const renewBefore = 14 * 24 * time.Hour

// certificates are those of the control interface.
func certificates(c *config.Config) control.Certificates {
	return control.Certificates{
		Certificate: c.Control.Certificate, Key: c.Control.Key, CA: c.Control.ClientCA,
	}
}

// metricsCertificates are those of metrics, "" if there are none.
func metricsCertificates(c *config.Config) control.Certificates {
	return control.Certificates{Certificate: c.Metrics.Certificate, Key: c.Metrics.Key}
}

// certificateProblem is an error with a certificate of the running configuration, with its place in
// c.
func certificateProblem(c, running *config.Config, err *control.FileError) config.Problem {
	key := "control.client_ca"
	switch err.File {
	case running.Control.Certificate:
		key = "control.certificate"
	case running.Control.Key:
		key = "control.key"
	case running.Metrics.Certificate:
		key = "metrics.certificate"
	case running.Metrics.Key:
		key = "metrics.key"
	}
	return c.Problem(key, err.Error(), "It must be a PEM file that the target may read.")
}

// probeCertificates looks at the certificates of the control interface and of metrics.
func probeCertificates(c *config.Config) (ps config.Problems) {
	look := func(key string, used bool, read func() (*tls.Config, error)) {
		if !used {
			return
		}
		t, err := read()
		if file, ok := errors.AsType[*control.FileError](err); ok {
			ps = append(ps, certificateProblem(c, c, file))
		} else if end := t.Certificates[0].Leaf.NotAfter; time.Until(end) < renewBefore {
			ps = append(ps, c.Warning(key, "the certificate ends on "+
				end.Local().Format(time.DateTime), "Renew it and reload: clients refuse it then."))
		}
	}
	look("control.certificate", c.Control.Listen.IsValid(), certificates(c).Server)
	m := metricsCertificates(c)
	look("metrics.certificate", m != control.Certificates{}, m.PublicServer)
	if m == (control.Certificates{}) && c.Metrics.Token != (config.Token{}) &&
		!c.Metrics.Listen.Addr().IsLoopback() {
		ps = append(ps, c.Warning("metrics.token", "who can listen on the network can read it",
			"Set metrics.certificate, too."))
	}
	return ps
}

// renewCertificates reads the certificates of the control interface and of metrics anew. If they
// cannot be used, those that it has stay.
func (s *Server) renewCertificates(c *config.Config) error {
	if s.control != nil {
		err := s.control.Renew()
		if file, ok := errors.AsType[*control.FileError](err); ok {
			return certificateProblem(c, s.atStart, file)
		}
		if err != nil {
			return err
		}
	}
	if c.Metrics != s.current().Metrics {
		return nil // setMetrics reads them
	}
	return s.renewMetrics(c)
}

// renewMetrics reads the certificate of metrics.
func (s *Server) renewMetrics(c *config.Config) error {
	m := metricsCertificates(c)
	if m == (control.Certificates{}) {
		return nil
	}
	t, err := m.PublicServer()
	if file, ok := errors.AsType[*control.FileError](err); ok {
		return certificateProblem(c, c, file)
	}
	s.metricsTLS.Store(t)
	return nil
}
