package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// controlled starts a server with a control socket and returns a client of it.
func controlled(t *testing.T, o app.Options, listeners string, more ...string) (
	*harness.Harness, *control.Client,
) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "control.sock")
	o.Config = parse(t, listeners, append(more, "control: {socket: "+socket+"}")...)
	s := started(t, o)
	c := control.NewClient(socket)
	t.Cleanup(c.Close)
	return s, c
}

// TestControl: a client sees the host, and what it takes. The sequence control has the rest.
func TestControl(t *testing.T) {
	s, c := controlled(t, app.Options{}, anyPort)
	ctx := t.Context()
	s.Connect(s.TCP(), hostOptions(testNQN))
	connections := testutil.Value(control.GetConnections.From(ctx, c))(t)
	testutil.MustEqual(t, len(connections), 1, "connections")
	admin := connections[0]
	st, err := control.GetStatus.From(ctx, c)
	testutil.MustTrue(t, err == nil && len(st.Shares) == 2, "%+v, %v", st.Shares, err)
	for i, of := range []string{st.Shares[0].Network, st.Shares[1].Host} {
		u := &st.Shares[i]
		want := [2]string{"127.0.0.1", admin.Host}[i]
		testutil.True(t, of == want && !u.Proven && u.Transport == "tcp" && u.Connections == 1 &&
			u.MostConnections >= 100 && u.QueueMemory != 0 && u.MostQueueMemory >= u.QueueMemory &&
			u.MostDataMemory != 0, "share of %q, want %q: %+v", of, want, u)
	}
	reactors, err := control.GetReactors.From(ctx, c)
	testutil.True(t, err == nil && len(reactors) == 2 && reactors[0].Polls != 0 &&
		reactors[0].MemoryBytes != 0, "reactors %+v, %v", reactors, err)
	hosts, err := control.GetHosts.From(ctx, c)
	testutil.True(t, err == nil && len(hosts) == 1 && hosts[0].Remote == admin.Remote,
		"hosts %+v, %v", hosts, err)
}

// issue writes a certificate that is its own CA, and its key.
func issue(t *testing.T, dir string, left time.Duration) httpd.Certificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(left), IsCA: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
	}
	der, err2 := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	private, err3 := x509.MarshalPKCS8PrivateKey(key)
	files := httpd.Certificates{
		Certificate: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"),
		CA: filepath.Join(dir, "crt"),
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	err4 := os.WriteFile(files.Certificate, block, 0o600)
	block = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	err5 := os.WriteFile(files.Key, block, 0o600)
	testutil.Must(t, errors.Join(err, err2, err3, err4, err5))
	return files
}

// TestControlRenewal: a reload takes over a new certificate, and refuses one that cannot be used.
func TestControlRenewal(t *testing.T) {
	dir := t.TempDir()
	files := issue(t, dir, time.Hour)
	c := parse(t, anyPort, fmt.Sprintf("control: {socket: '', listen: '127.0.0.1:0', "+
		"certificate: %s, key: %s, client_ca: %s}", files.Certificate, files.Key, files.CA))
	s := started(t, app.Options{
		Config: c,
		Load:   func(...config.Option) (*config.Config, error) { return c, nil },
	})
	testutil.True(t, strings.Contains(s.Log.String(), "the certificate ends on "),
		"no warning:\n%s", s.Log)
	reload := func(files httpd.Certificates) error {
		t.Helper()
		client := testutil.Value(control.NewTLSClient(s.Control().Addr().String(), files))(t)
		defer client.Close()
		_, err := client.Reload(t.Context())
		return err
	}
	testutil.Check(t, reload(files))
	old := issue(t, t.TempDir(), time.Hour) // any other
	files = issue(t, dir, 1000*time.Hour)
	testutil.True(t, reload(files) != nil, "the certificate changed without a reload")
	testutil.Check(t, testutil.Err(s.Reload()))
	testutil.Check(t, reload(files))
	testutil.True(t, reload(old) != nil, "another certificate is accepted")
	testutil.Must(t, os.Truncate(files.Key, 0))
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), ": control.key: ") {
		t.Errorf("a key file that is empty: %v", err)
	}
}

// TestControlSocketTaken: a target that chose the socket itself runs without it.
func TestControlSocketTaken(t *testing.T) {
	s, _ := controlled(t, app.Options{}, anyPort)
	taken := s.Current().Control.Socket
	auto := started(t, app.Options{Config: parse(t, anyPort), ControlSocket: taken})
	testutil.True(t, strings.Contains(auto.Log.String(), "the control interface is not served"),
		"the log does not say so:\n%s", auto.Log)
	named := newServer(t, app.Options{
		Config: parse(t, anyPort, fmt.Sprintf("control: {socket: %s}", taken)),
	})
	err := named.Start()
	testutil.True(t, err != nil && strings.Contains(err.Error(), "control.socket: process "), "%v",
		err)
	none := started(t, app.Options{
		Config: parse(t, anyPort, `control: {socket: ""}`), ControlSocket: taken + "2",
	})
	testutil.True(t, none.Control() == nil, "it is served")
}
