package tls

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// maxHandshake is the maximum number of bytes that a client may send until the handshake is
// complete: two ClientHellos and a Finished.
const maxHandshake = 3 * maxHello

// MaxInput is the maximum number of bytes that a step of a handshake takes.
const MaxInput = maxHello

// Server is the handshake of one connection. One goroutine at a time may use it, never a reactor.
type Server struct {
	psks     func(identity []byte) []auth.TLSPSK
	hello    []byte // the stream, until the ClientHello is complete
	hs       *openssl.Handshake
	psk      PSK
	received int
}

// NewServer makes a handshake. psks returns the PSKs with an identity, none if it is unknown. The
// caller calls Free.
func NewServer(psks func(identity []byte) []auth.TLSPSK) *Server { return &Server{psks: psks} }

// Step processes at most MaxInput of the client's bytes and returns the bytes to send, also after
// an error. After the handshake it returns the connection, which the caller closes.
func (s *Server) Step(in []byte) (out []byte, c *Conn, err error) {
	if s.received += len(in); s.received > maxHandshake {
		return nil, nil, errors.New("the handshake is too long")
	}
	if s.hs == nil {
		if in, out, err = s.start(in); s.hs == nil {
			return out, nil, err
		}
	}
	out, done, err := s.hs.Step(in)
	switch {
	case err != nil:
		return out, nil, fmt.Errorf("TLS handshake: %w", err)
	case !done:
		return out, nil, nil
	}
	c, err = newConn(s.hs, true, s.psk.TLSPSK.Hash)
	return out, c, err
}

// start begins the handshake once there is a ClientHello. The peer does not learn whether the host
// is known, or which key it has.
func (s *Server) start(in []byte) (all, out []byte, err error) {
	s.hello = append(s.hello, in...)
	h, err := parseHello(s.hello)
	switch {
	case errors.Is(err, errIncomplete) && len(s.hello) < maxHello:
		return nil, nil, nil
	case errors.Is(err, errBinders):
		return nil, plainAlert(alertIllegalParameter), err
	case err == nil:
		if s.psk, err = h.choose(s.psks); err != nil {
			return nil, plainAlert(alertDecryptError), err
		}
	}
	s.hs, err = openssl.NewHandshake(true, s.psk.TLSPSK.Hash == auth.SHA384,
		[]byte(s.psk.Identity), s.psk.Secret)
	clear(s.psk.Secret)
	if err != nil {
		return nil, plainAlert(alertInternalError), err
	}
	all, s.hello = s.hello, nil
	return all, nil, nil
}

// Begun reports whether a ClientHello has shown a PSK with a valid binder.
func (s *Server) Begun() bool { return s.hs != nil && s.psk.Identity != "" }

// PSK returns the PSK that the client has proven to have, without its secret.
func (s *Server) PSK() *PSK { return &s.psk }

// Free wipes and frees the state of the handshake.
func (s *Server) Free() {
	if s.hs != nil {
		s.hs.Free()
		s.hs = nil
	}
}

// plainAlert returns an alert before there are keys (section 5.1).
func plainAlert(alert byte) []byte {
	return []byte{typeAlert, 3, 3, 0, 2, levelFatal, alert}
}

// Client is the handshake of a client.
type Client struct {
	hs   *openssl.Handshake
	hash auth.Hash
}

// NewClient makes a handshake with a PSK. Free must be called.
func NewClient(p *auth.TLSPSK) (*Client, error) {
	hs, err := openssl.NewHandshake(false, p.Hash == auth.SHA384, []byte(p.Identity), p.Secret)
	return &Client{hs, p.Hash}, err
}

// Step is Server.Step for a client.
func (c *Client) Step(in []byte) (out []byte, _ *Conn, err error) {
	out, done, err := c.hs.Step(in)
	if err != nil || !done {
		return out, nil, err
	}
	conn, err := newConn(c.hs, false, c.hash)
	return out, conn, err
}

// Free wipes and frees the state of the handshake.
func (c *Client) Free() { c.hs.Free() }
