package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// authority is a CA with its own files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true})
	return a
}

// issue writes NAME.crt and NAME.key.
func (a *authority) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	a.next++
	c.SerialNumber, c.Subject = big.NewInt(a.next), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	a.must(err)
	c, err = x509.ParseCertificate(der)
	a.must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	a.must(err)
	a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return c, key
}

func (a *authority) must(err error) {
	a.t.Helper()
	testutil.Must(a.t, err)
}

func (a *authority) write(name string, text []byte) {
	a.must(os.WriteFile(filepath.Join(a.dir, name), text, 0o600))
}

// files returns the files of a holder of a certificate, which trusts the CA.
func (a *authority) files(name string) httpd.Certificates {
	return httpd.Certificates{
		Certificate: filepath.Join(a.dir, name+".crt"), Key: filepath.Join(a.dir, name+".key"),
		CA: filepath.Join(a.dir, "ca.crt"),
	}
}

// refusals records the refusals of a server.
type refusals struct {
	mu   sync.Mutex
	errs []error
}

func (r *refusals) add(k *event.Kind, _ netip.AddrPort, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Errorf("%s: %v", k.Message, args))
}

func (r *refusals) await(t *testing.T, text string) {
	t.Helper()
	testutil.Until(t, fmt.Sprintf("a refusal with %q", text), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return strings.Contains(fmt.Sprint(r.errs), text)
	})
}

// serveTLS serves on TCP only.
func serveTLS(t *testing.T, a *authority, f *feed, log *slog.Logger) (*Server, *refusals) {
	t.Helper()
	a.issue("server", &x509.Certificate{})
	a.issue("client", &x509.Certificate{})
	r := new(refusals)
	src := testSource(f)
	s, err := Listen(Config{TLS: TLS{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Certificates: a.files("server"),
	}, Refused: r.add}, src, log)
	a.must(err)
	t.Cleanup(func() { testutil.Check(t, s.Close()) })
	return s, r
}

// asks makes a request with a certificate.
func asks(t *testing.T, s *Server, c httpd.Certificates) error {
	t.Helper()
	client, err := NewTLSClient(s.Addr().String(), c)
	testutil.Must(t, err)
	defer client.Close()
	_, err = PostDisconnect.To(t.Context(), client, Disconnect{Host: "h"})
	return err
}

// TestTLS: clients with a certificate of the CA are served, and named in the log; others are not.
// Certificates can be exchanged.
func TestTLS(t *testing.T) {
	a, other, log := newAuthority(t), newAuthority(t), new(testutil.Log)
	s, r := serveTLS(t, a, new(feed), log.Logger())
	a.must(asks(t, s, a.files("client")))
	testutil.True(t, strings.Contains(log.String(), `certificate="CN=client"`),
		"the log does not say who it was:\n%s", log)
	other.issue("client", &x509.Certificate{})
	foreign := other.files("client")
	foreign.CA = a.files("").CA
	testutil.True(t, asks(t, s, foreign) != nil, "a certificate of another CA is accepted")
	r.await(t, "unknown authority")
	if err := asks(t, s, httpd.Certificates{
		Certificate: a.files("client").Certificate, Key: a.files("client").Key,
		CA: other.files("").CA,
	}); err == nil {
		t.Error("the client trusts a target of another CA")
	}
	c, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		_, err = c.Read(make([]byte, 1)) // TLS 1.3: the client is done before it is refused
		c.Close()
	}
	testutil.True(t, err != nil && !errors.Is(err, io.EOF), "without a certificate: %v", err)
	r.await(t, "client didn't provide a certificate")
	old, err := tls.LoadX509KeyPair(a.files("client").Certificate, a.files("client").Key)
	a.must(err)
	if _, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{old},
	}); err == nil {
		t.Error("TLS 1.2 is accepted")
	}
	text, err := os.ReadFile(other.files("").CA)
	a.must(err)
	a.write("ca.crt", text)
	a.must(s.Renew())
	if err := asks(t, s, foreign); err == nil { // unlike the server, it trusts the new CA
		t.Error("the client trusts a target of another CA")
	}
	foreign.CA = filepath.Join(other.dir, "server-ca.crt")
	other.write("server-ca.crt", pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: a.cert.Raw,
	}))
	a.must(asks(t, s, foreign))
}

// TestTLSTrustEnds: a client connected while the CA is replaced is no longer served.
func TestTLSTrustEnds(t *testing.T) {
	a, other, f := newAuthority(t), newAuthority(t), new(feed)
	s, r := serveTLS(t, a, f, quiet)
	f.add(observed.Event{})
	client, err := NewTLSClient(s.Addr().String(), a.files("client"))
	a.must(err)
	defer client.Close()
	_, err = GetStatus.From(t.Context(), client)
	a.must(err)
	text, err := os.ReadFile(other.files("").CA)
	a.must(err)
	events := 0
	err = client.Follow(t.Context(), func(observed.Event) error {
		if events++; events > 1 {
			return errors.New("an event after it")
		}
		_, err = GetStatus.From(t.Context(), client) // on a connection that is then idle
		a.must(err)
		a.write("ca.crt", text)
		a.must(s.Renew())
		f.add(observed.Event{})
		return nil
	})
	testutil.True(t, events == 1 && errors.Is(err, io.ErrUnexpectedEOF), "%d events, %v", events,
		err)
	_, err = GetStatus.From(t.Context(), client)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "unknown authority"),
		"a request: %v", err)
	r.await(t, "control connection refused: [err x509: ")
}

// TestTLSFiles: unusable files are named, and the files in use stay.
func TestTLSFiles(t *testing.T) {
	a := newAuthority(t)
	s, _ := serveTLS(t, a, new(feed), quiet)
	files := a.files("server")
	for _, name := range []string{files.Certificate, files.Key, files.CA} {
		good, err := os.ReadFile(name)
		a.must(err)
		for _, bad := range []func() error{
			func() error { return os.Remove(name) },
			func() error { return os.Mkdir(name, 0o700) },
			func() error { return errors.Join(os.Remove(name), os.WriteFile(name, nil, 0o600)) },
			func() error { return os.WriteFile(name, []byte("garbage"), 0o600) },
		} {
			a.must(bad())
			err := s.Renew()
			e, ok := errors.AsType[*httpd.FileError](err)
			testutil.True(t, ok && e.File == name, "%s: %v", name, err)
			if name != files.CA { // the client needs it as well
				a.must(asks(t, s, a.files("client")))
			}
		}
		a.must(os.WriteFile(name, good, 0o600))
		a.must(s.Renew())
	}
	a.issue("client", &x509.Certificate{})
	a.must(os.Rename(a.files("client").Key, files.Key))
	e, ok := errors.AsType[*httpd.FileError](s.Renew())
	testutil.True(t, ok && e.File == files.Key, "a key of another certificate: %v", e)
}

// stranger connects from an address to a server that wants certificates.
func (a *authority) stranger(s *Server, from string) net.Conn {
	a.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(a.t.Context(), "tcp", s.Addr().String())
	a.must(err)
	a.t.Cleanup(func() { c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
	return c
}

// little is the input of strangers that never finish a handshake.
var little = []string{"", "\x16\x03\x01"}

// TestTLSSilent: peers that send nothing or little stay for the time of a handshake.
func TestTLSSilent(t *testing.T) {
	set(t, &handshakeTimeout, 50*time.Millisecond)
	a := newAuthority(t)
	s, r := serveTLS(t, a, new(feed), quiet)
	for _, text := range little {
		c := a.stranger(s, "127.0.0.1")
		_, _ = io.WriteString(c, text)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a peer that sends %q is still there", text)
		}
	}
	r.await(t, "no certificate within")
}

// TestTLSStrangers: peers that send nothing, little or garbage never hold more than their share.
// The client is served meanwhile, and their megabytes are refused.
func TestTLSStrangers(t *testing.T) {
	a := newAuthority(t)
	s, r := serveTLS(t, a, new(feed), quiet)
	a.issue("client", &x509.Certificate{})
	var silent []net.Conn
	for i := range 2 * httpd.MaxHandshakes { // from other addresses than the client
		silent = append(silent, a.stranger(s, fmt.Sprintf("127.0.1.%d", i%4+1)))
		_, _ = io.WriteString(silent[i], little[i%2])
	}
	if _, err := io.Copy(io.Discard, silent[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest peer is not evicted")
	}
	r.await(t, "evicted by a newer connection")
	for _, garbage := range []string{
		"GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x16\x03\x01\xff", 1<<16),
	} {
		c := a.stranger(s, "127.0.0.1")
		_, _ = io.WriteString(c, garbage)
		_, _ = io.Copy(io.Discard, c)
	}
	a.must(asks(t, s, a.files("client")))
	client, err := NewTLSClient(s.Addr().String(), a.files("client"))
	a.must(err)
	defer client.Close()
	_, err = PostDisconnect.To(t.Context(), client, Disconnect{Host: strings.Repeat("h", 4<<20)})
	testutil.True(t, err != nil, "4 MiB are accepted")
	for i := 0; i < 2*httpd.MaxHandshakes; i++ { // waiting in the queue of the kernel
		a.stranger(s, fmt.Sprintf("127.0.2.%d", i/8+1))
	}
	testutil.Until(t, "the client to be served while strangers come", func() bool {
		return asks(t, s, a.files("client")) == nil
	})
}

// TestTLSFamilies: at [::], clients from IPv4 are served, and refused by their address.
func TestTLSFamilies(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", &x509.Certificate{})
	a.issue("client", &x509.Certificate{})
	remotes := make(chan netip.AddrPort, 1)
	src := testSource(new(feed))
	s, err := Listen(Config{
		TLS:     TLS{Listen: netip.MustParseAddrPort("[::]:0"), Certificates: a.files("server")},
		Refused: func(_ *event.Kind, remote netip.AddrPort, _ []any) { remotes <- remote },
	}, src, quiet)
	a.must(err)
	t.Cleanup(func() { _ = s.Close() })
	at := fmt.Sprintf("127.0.0.1:%d", s.Addr().Port())
	client, err := NewTLSClient(at, a.files("client"))
	a.must(err)
	defer client.Close()
	_, err = PostDisconnect.To(t.Context(), client, Disconnect{Host: "h"})
	a.must(err)
	c, err := net.Dial("tcp", at)
	a.must(err)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	got := testutil.Receive(t, "a refusal", remotes)
	testutil.True(t, got.String() == c.LocalAddr().String(), "%v was refused, want %v", got,
		c.LocalAddr())
	_ = c.Close()
}
