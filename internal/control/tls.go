package control

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/internal/netlimit"
)

// The limits for peers that have not shown a certificate yet. Tests change the time.
const maxHandshakes = 64 // a quarter of them of one address

var handshakeTimeout = 5 * time.Second

// maxPEM is the largest file that is read.
const maxPEM = 1 << 20

var (
	errEvicted = errors.New("evicted by a newer connection: too many show no certificate")
	errSilent  = fmt.Errorf("no certificate within %v", handshakeTimeout)
)

// TLS is where the interface is served to clients that show a certificate.
type TLS struct {
	// Listen is the address; if it is not valid, the interface is not served on TCP.
	Listen netip.AddrPort
	// Certificates are read by Listen and by Server.Renew.
	Certificates Certificates
}

// Certificates names the PEM files with which one side of a TLS connection proves who it is, and
// checks the other one.
type Certificates struct {
	// Certificate is the chain of this side, Key its private key, CA those who may have signed the
	// certificate of the other side.
	Certificate, Key, CA string
}

// FileError says which of the Certificates cannot be used.
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
	// The key file has the blame only if the other one is a certificate.
	if own, err = tls.X509KeyPair(certificate, key); err != nil {
		if ca := x509.NewCertPool(); !ca.AppendCertsFromPEM(certificate) {
			return own, &FileError{c.Certificate, errors.New("no PEM certificate")}
		}
		return own, &FileError{c.Key, err}
	}
	return own, nil
}

// load reads the files.
func (c Certificates) load() (own tls.Certificate, ca *x509.CertPool, err error) {
	if own, err = c.pair(); err != nil {
		return own, nil, err
	}
	roots, err := readPEM(c.CA)
	if err != nil {
		return own, nil, err
	}
	ca = x509.NewCertPool()
	if !ca.AppendCertsFromPEM(roots) {
		return own, nil, &FileError{c.CA, errors.New("no PEM certificate")}
	}
	return own, ca, nil
}

func readPEM(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, &FileError{name, err}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &FileError{name, err}
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxPEM))
	if err != nil {
		return nil, &FileError{name, err}
	}
	return b, nil
}

// Server returns what a server needs to know of the files now. The error is a *FileError.
func (c Certificates) Server() (*tls.Config, error) {
	own, ca, err := c.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientCAs: ca,
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"http/1.1"},
		SessionTicketsDisabled: true, // each connection is checked against the CA of its time
	}, nil
}

// PublicServer returns what a server needs to know of the files now that asks clients for no
// certificate; it needs no CA. The error is a *FileError.
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

// Client returns what a client needs to know of the files now. The error is a *FileError.
func (c Certificates) Client() (*tls.Config, error) {
	own, ca, err := c.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: ca,
	}, nil
}

// tlsListener accepts connections whose handshake is done. What others may hold is bounded.
type tlsListener struct {
	net.Listener // TCP
	config       func() *tls.Config
	refused      func(remote netip.AddrPort, err error)
	ready        chan net.Conn
	handshakes   *admission.Counter
	wg           sync.WaitGroup

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// NewTLSListener returns a listener for the connections of l (TCP) on which a TLS handshake has
// succeeded with the config of its time. Others hold a bounded share each, and end soon; refused
// is then called, by any goroutine.
func NewTLSListener(l net.Listener, config func() *tls.Config,
	refused func(remote netip.AddrPort, err error),
) net.Listener {
	t := &tlsListener{
		Listener: l, config: config, refused: refused, ready: make(chan net.Conn),
		// Unassociated connections, as all are here, have a quarter.
		handshakes: admission.New(admission.Limits{
			Connections: 4 * maxHandshakes, PerHost: 4 * maxHandshakes,
		}),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.wg.Go(t.run)
	return t
}

// run accepts connections until the listener is closed.
func (t *tlsListener) run() {
	for {
		c, err := t.Listener.Accept()
		switch {
		case err == nil:
			t.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-time.After(100 * time.Millisecond): // too many open files, for instance
			case <-t.ctx.Done():
			}
		}
	}
}

// admit serves a connection, which may evict an older one.
func (t *tlsListener) admit(raw net.Conn) {
	remote := netlimit.Remote(raw)
	ctx, cancel := context.WithCancelCause(t.ctx)
	place, err := t.handshakes.Admit(remote.Addr(), 0, func(error) { cancel(errEvicted) })
	if err != nil {
		cancel(nil)
		_ = raw.Close()
		t.refused(remote, errors.New("too many connections without a certificate are open"))
		return
	}
	t.wg.Go(func() {
		defer cancel(nil)
		defer place.Leave()
		if err := t.serve(ctx, raw); err != nil {
			_ = raw.Close()
			t.refused(remote, err)
		}
	})
}

// serve makes the handshake, and passes the connection on to Accept.
func (t *tlsListener) serve(ctx context.Context, raw net.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, errSilent)
	defer cancel()
	c := tls.Server(raw, &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return t.config(), nil
		},
	})
	if err := c.HandshakeContext(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	select {
	case t.ready <- c:
		return nil
	case <-ctx.Done():
		return errors.New("too many clients")
	}
}

// Accept implements net.Listener.
func (t *tlsListener) Accept() (net.Conn, error) {
	select {
	case c := <-t.ready:
		return c, nil
	case <-t.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. No handshake goes on when it returns.
func (t *tlsListener) Close() error {
	t.cancel()
	err := t.Listener.Close()
	t.wg.Wait()
	return err
}

// trusts says why a client that came with a certificate would not be let in now: since then it may
// have expired, or its CA may have been replaced.
func (s *Server) trusts(r *http.Request) error {
	chain := clientOf(r.Context()).certificates
	if chain == nil {
		return nil
	}
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: s.tls.Load().ClientCAs, Intermediates: others,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
