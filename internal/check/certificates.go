package check

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
)

// renewBefore is the time before the end of a certificate at which a warning is given.
const renewBefore = 14 * 24 * time.Hour

// ControlCertificates returns the certificates of the control interface.
func ControlCertificates(c *config.Config) httpd.Certificates {
	return httpd.Certificates{
		Certificate: c.Control.Certificate, Key: c.Control.Key, CA: c.Control.ClientCA,
	}
}

// CertificatesOf returns the certificates of metrics or the page, "" if there are none.
func CertificatesOf(e *config.Endpoint) httpd.Certificates {
	return httpd.Certificates{Certificate: e.Certificate, Key: e.Key}
}

// CertificateProblem is an error of a certificate in the running configuration, placed in c.
func CertificateProblem(c, running *config.Config, err *httpd.FileError) config.Problem {
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
	case running.Web.Certificate:
		key = "web.certificate"
	case running.Web.Key:
		key = "web.key"
	}
	return c.Problem(key, err.Error(), "It must be a PEM file that the target may read.")
}

// Certificates checks the certificates of the control interface, of metrics and of the page,
// and warns of endpoints without them.
func Certificates(c *config.Config) (ps config.Problems) {
	look := func(key string, used bool, read func() (*tls.Config, error)) {
		if !used {
			return
		}
		t, err := read()
		if file, ok := errors.AsType[*httpd.FileError](err); ok {
			ps = append(ps, CertificateProblem(c, c, file))
		} else if end := t.Certificates[0].Leaf.NotAfter; time.Until(end) < renewBefore {
			ps = append(ps, c.Warning(key, "the certificate ends on "+
				end.Local().Format(time.DateTime), "Renew it and reload: clients refuse it then."))
		}
	}
	look("control.certificate", c.Control.Listen.IsValid(), ControlCertificates(c).Server)
	for name, e := range map[string]*config.Endpoint{"metrics": &c.Metrics, "web": &c.Web} {
		files := CertificatesOf(e)
		look(name+".certificate", files != httpd.Certificates{}, files.PublicServer)
		switch {
		case !e.Exposed():
		case e.Token == config.Token{}:
			ps = append(ps, c.Warning(name+".listen", "everybody who reaches this address sees "+
				"the names of hosts, subsystems and disks, and what they do",
				"Set "+name+".certificate, key and token_file, or listen at 127.0.0.1."))
		case e.Certificate == "":
			ps = append(ps, c.Warning(name+".token", "anyone who can read traffic on "+
				"the network can read it",
				"Set "+name+".certificate, too."))
		}
	}
	for i, w := range c.WebTargets {
		if _, err := (httpd.Certificates{CA: w.CA}).Client(); err != nil {
			ps = append(ps, c.Warning(fmt.Sprintf("web.targets[%d].ca", i), err.Error(),
				"It must be a PEM file that the target may read; until then the page does not "+
					"show that target."))
		}
	}
	return ps
}
