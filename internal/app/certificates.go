package app

import (
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

// certificateProblem is an error with a certificate of the running configuration, with its place in
// c.
func certificateProblem(c, running *config.Config, err *control.FileError) config.Problem {
	key := "client_ca"
	switch at := running.Control; err.File {
	case at.Certificate:
		key = "certificate"
	case at.Key:
		key = "key"
	}
	return c.Problem("control."+key, err.Error(), "It must be a PEM file that the target may read.")
}

// probeCertificates looks at the certificates of the control interface.
func probeCertificates(c *config.Config) config.Problems {
	if !c.Control.Listen.IsValid() {
		return nil
	}
	t, err := certificates(c).Server()
	if file, ok := errors.AsType[*control.FileError](err); ok {
		return config.Problems{certificateProblem(c, c, file)}
	}
	if end := t.Certificates[0].Leaf.NotAfter; time.Until(end) < renewBefore {
		return config.Problems{c.Warning("control.certificate", "the certificate ends on "+
			end.Local().Format(time.DateTime), "Renew it and reload: clients refuse it then.")}
	}
	return nil
}

// renewCertificates reads the certificates of the control interface anew. If they cannot be used,
// those that it has stay.
func (s *Server) renewCertificates(c *config.Config) error {
	if s.control == nil {
		return nil
	}
	err := s.control.Renew()
	if file, ok := errors.AsType[*control.FileError](err); ok {
		return certificateProblem(c, s.atStart, file)
	}
	return err
}
