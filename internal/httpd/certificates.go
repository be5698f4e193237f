package httpd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// maxPEM is the size limit of a file.
const maxPEM = 1 << 20

// Certificates names the PEM files by which one side of TLS authenticates itself and its peer.
type Certificates struct {
	// Certificate is the chain of this side, Key its private key, and CA the CAs of the peer.
	Certificate, Key, CA string
}

// FileError reports one of the Certificates that cannot be used.
type FileError struct {
	// File is the name.
	File string
	err  error
}

func (e *FileError) Error() string {
	err := e.err
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return e.File + ": " + err.Error()
}

func (e *FileError) Unwrap() error { return e.err }

// pair reads the certificate and its key.
func (c Certificates) pair() (own tls.Certificate, err error) {
	certificate, err := readPEM(c.Certificate)
	if err != nil {
		return own, err
	}
	key, err := readPEM(c.Key)
	if err != nil {
		return own, err
	}
	// The key file is to blame only if the other file is a certificate.
	if own, err = tls.X509KeyPair(certificate, key); err != nil {
		if ca := x509.NewCertPool(); !ca.AppendCertsFromPEM(certificate) {
			return own, &FileError{c.Certificate, errors.New("no PEM certificate")}
		}
		return own, &FileError{c.Key, err}
	}
	return own, nil
}

func (c Certificates) roots() (*x509.CertPool, error) {
	text, err := readPEM(c.CA)
	if err != nil {
		return nil, err
	}
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(text) {
		return nil, &FileError{c.CA, errors.New("no PEM certificate")}
	}
	return ca, nil
}

func readPEM(name string) ([]byte, error) {
	b, err := sys.ReadFile(name, maxPEM, false)
	if err != nil {
		return nil, &FileError{name, err}
	}
	return b, nil
}

// Server reads the files for a server with certificates of clients. Errors are *FileErrors.
func (c Certificates) Server() (*tls.Config, error) {
	t, err := c.PublicServer()
	if err != nil {
		return nil, err
	}
	if t.ClientCAs, err = c.roots(); err != nil {
		return nil, err
	}
	t.ClientAuth = tls.RequireAndVerifyClientCert
	t.SessionTicketsDisabled = true // so that each connection is checked against the current CA
	return t, nil
}

// PublicServer is Server for clients without certificates. It needs no CA.
func (c Certificates) PublicServer() (*tls.Config, error) {
	own, err := c.pair()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		NextProtos: []string{"http/1.1"},
	}, nil
}

// Client reads the files for a client. Without a certificate it shows none, and without a CA it
// uses the CAs of the machine. The error is a *FileError.
func (c Certificates) Client() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.Certificate != "" {
		own, err := c.pair()
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{own}
	}
	if c.CA == "" {
		return t, nil
	}
	var err error
	t.RootCAs, err = c.roots()
	return t, err
}
