package httpd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/admission"
)

// MaxHandshakes is the maximum number of peers in a handshake, a quarter of them from one address.
const MaxHandshakes = 64

var errEvicted = errors.New("evicted by a newer connection: too many show no certificate")

// tlsListener accepts connections after their handshake, with bounds for all others.
type tlsListener struct {
	net.Listener // TCP
	config       func() *tls.Config
	refused      func(remote netip.AddrPort, err error)
	patience     time.Duration // for a handshake
	ready        chan net.Conn
	handshakes   *admission.Counter
	wg           sync.WaitGroup

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// newTLSListener returns a listener for TCP connections of l after a TLS handshake with the current
// configuration. Those in a handshake have a bounded share each, and end soon.
func newTLSListener(l net.Listener, e *Endpoint, patience time.Duration) net.Listener {
	t := &tlsListener{
		Listener: l, config: e.TLS, refused: e.Refused, patience: patience,
		ready: make(chan net.Conn),
		// All connections here are unassociated, which have a quarter.
		handshakes: admission.New(admission.Limits{
			Connections: 4 * MaxHandshakes, PerHost: 4 * MaxHandshakes,
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
			case <-time.After(100 * time.Millisecond): // such as too many open files
			case <-t.ctx.Done():
			}
		}
	}
}

// admit serves a connection. It may evict an older one.
func (t *tlsListener) admit(raw net.Conn) {
	remote := Remote(raw)
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
	ctx, cancel := context.WithTimeoutCause(ctx, t.patience,
		fmt.Errorf("no certificate within %v", t.patience))
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

func (t *tlsListener) Accept() (net.Conn, error) {
	select {
	case c := <-t.ready:
		return c, nil
	case <-t.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. When it returns, no handshake is in progress.
func (t *tlsListener) Close() error {
	t.cancel()
	err := t.Listener.Close()
	t.wg.Wait()
	return err
}
