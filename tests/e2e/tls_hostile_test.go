package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// shake completes a handshake with the target.
func shake(c net.Conn) error {
	psk, err := tlsPSK(TLSKey)("", "")
	if err != nil {
		return err
	}
	client, err := tls.NewClient(psk)
	if err != nil {
		return err
	}
	defer client.Free()
	b := make([]byte, tls.MaxInput)
	for n := 0; ; {
		out, conn, err := client.Step(b[:n])
		if err != nil {
			return err
		}
		if _, err := c.Write(out); err != nil {
			return err
		}
		if conn != nil {
			conn.Close()
			return nil
		}
		if n, err = c.Read(b); err != nil {
			return err
		}
	}
}

// TestTLSHostile: an error of a peer ends its own connection, the log gives the reason, and a
// connected host is unaffected.
func TestTLSHostile(t *testing.T) {
	NeedTLS(t)
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.LingerTimeout = 50 * time.Millisecond
	}})
	hello := recordHello(t, h)
	v := Variant{TCP: host.TCP{PSK: tlsPSK(TLSKey)}}
	q := h.Open(h.Dial(v), 1, 9)
	after := func(b ...byte) func(c net.Conn) {
		return func(c net.Conn) {
			h.Must(shake(c))
			_, _ = c.Write(b)
		}
	}
	send := func(b []byte) func(c net.Conn) { return func(c net.Conn) { _, _ = c.Write(b) } }
	for _, tc := range []struct {
		name string
		do   func(c net.Conn)
		log  string
		last []byte // the last bytes for the peer; nil: any
	}{
		{
			"a ClientHello that is changed", send(append(bytes.Clone(hello[:20]),
				append([]byte{hello[20] + 1}, hello[21:]...)...)),
			"the client has another key",
			[]byte{21, 3, 3, 0, 2, 2, 51},
		},
		{
			"no ClientHello", send([]byte{22, 3, 1, 0, 5, 2, 0, 0, 1, 0}), "TLS handshake failed",
			nil,
		},
		{
			"records without end",
			send(append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xFF, 0xFF}, make([]byte, 20<<10)...)),
			"TLS handshake failed", nil,
		},
		{
			"a record that is forged",
			after(append([]byte{23, 3, 3, 0, 32}, make([]byte, 32)...)...),
			"TLS: a record was changed", nil,
		},
		{"plain data", after(make([]byte, 128)...), "TLS: a record of type 0", nil},
		{"a record that is too long", after(23, 3, 3, 0xFF, 0xFF), "TLS: a record of 65535", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := testutil.Value(net.Dial("tcp", h.Addr(nvme.TransportTCP).String()))(t)
			defer c.Close()
			tc.do(c)
			got := untilEnd(t, c)
			testutil.True(t, tc.last == nil || bytes.Equal(got, tc.last),
				"the peer got % x instead of % x", got, tc.last)
			h.Until("the log says "+tc.log, func() bool {
				return strings.Contains(h.Log.String(), tc.log)
			})
			h.Must(hosttest.Write(testutil.Context(t), q, 1, 0, 1, make([]byte, 512), 0))
		})
	}
}

// untilEnd returns the bytes received until the target ends the connection.
func untilEnd(t *testing.T, c net.Conn) []byte {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	got, err := io.ReadAll(c)
	testutil.MustTrue(t, !errors.Is(err, os.ErrDeadlineExceeded), "the connection stays open")
	return got
}

// TestTLSUnfinished: an unfinished handshake or connection ends in time.
func TestTLSUnfinished(t *testing.T) {
	t.Parallel()
	NeedTLS(t)
	const limit = time.Second
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.ICReqTimeout = limit
	}})
	hello := recordHello(t, h)
	send := func(b []byte) func(c net.Conn) error {
		return func(c net.Conn) error {
			_, err := c.Write(b)
			return err
		}
	}
	for name, do := range map[string]func(c net.Conn) error{
		"half a ClientHello": send(hello[:99]),
		"a ClientHello":      send(hello),
		"a handshake":        shake,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			var c net.Conn
			h.Until(name+" is sent before the limit", func() bool {
				c = testutil.Value(net.Dial("tcp", h.Addr(nvme.TransportTCP).String()))(h.T)
				t.Cleanup(func() { _ = c.Close() })
				return do(c) == nil
			})
			got := untilEnd(t, c)
			testutil.True(t, len(got) == 0 || name != "half a ClientHello", "the peer got % x", got)
		})
	}
	t.Cleanup(func() {
		n := strings.Count(h.Log.String(), "no complete ICReq within 1s")
		testutil.True(t, n >= 3, "the log says %d times that a handshake was not finished", n)
	})
}

// opensslPeer is a command of OpenSSL with a connection. Its pipes carry the plain text.
type opensslPeer struct {
	in     io.WriteCloser
	out    io.Reader
	errors bytes.Buffer // to be read when it has ended
	end    func()
}

// startOpenSSL runs s_client or s_server with a PSK. They only support one for SHA-256.
func startOpenSSL(t *testing.T, psk *auth.TLSPSK, args ...string) *opensslPeer {
	t.Helper()
	c := exec.CommandContext(testutil.Context(t), "openssl", append(args, "-psk",
		hex.EncodeToString(psk.Secret), "-psk_identity", psk.Identity, "-tls1_3",
		"-ciphersuites", "TLS_AES_128_GCM_SHA256")...)
	p := &opensslPeer{}
	c.Stderr = &p.errors
	in := testutil.Value(c.StdinPipe())(t)
	out := testutil.Value(c.StdoutPipe())(t)
	testutil.Must(t, c.Start())
	p.in, p.out = in, out
	p.end = sync.OnceFunc(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	t.Cleanup(p.end)
	return p
}

// read receives data from the other side.
func (p *opensslPeer) read(t *testing.T, b []byte) {
	t.Helper()
	if n, err := io.ReadFull(p.out, b); err != nil {
		p.end()
		t.Fatalf("%d of %d bytes: %v\n%s", n, len(b), err, &p.errors)
	}
}

func needOpenSSL(t *testing.T) (key *auth.TLSKey, psk *auth.TLSPSK) {
	t.Helper()
	NeedTLS(t)
	testutil.Program(t, "scripts/deps.sh test installs it", "openssl")
	key = newTLSKey(auth.SHA256)
	psk = testutil.Value(tlsPSK(key)("", ""))(t)
	return key, psk
}

// TestTLSOpenSSLClient: the client of OpenSSL connects to the target, which reads and answers its
// ICReq and its Connect command.
func TestTLSOpenSSLClient(t *testing.T) {
	key, psk := needOpenSSL(t)
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.PSKs = func([]byte) []auth.TLSPSK {
			p, _ := key.PSKs(HostNQN, SubNQN)
			return p
		}
	}})
	client := startOpenSSL(t, psk, "s_client", "-quiet", "-connect",
		h.Addr(nvme.TransportTCP).String())
	testutil.Value(client.in.Write(greeting()))(h.T)
	var resp pdu.IC
	client.read(t, resp[:])
	f := resp.Check()
	testutil.True(t, f.OK() && resp.Header().Type() == pdu.TypeICResp, "%v: % x", f, resp)
	capsule, _ := connectCapsule(true)
	testutil.Value(client.in.Write(capsule))(h.T)
	var connected pdu.CapsuleResp
	client.read(t, connected[:])
	st := connected.CQE().Status()
	testutil.True(t, st.OK() && connected.Header().Type() == pdu.TypeCapsuleResp, "%v: % x", st,
		connected)
}

// TestTLSOpenSSLServer: our host connects to the server of OpenSSL, which reads its ICReq, and
// receives the answer.
func TestTLSOpenSSLServer(t *testing.T) {
	_, psk := needOpenSSL(t)
	h := New(t, Options{})
	addr := fmt.Sprint("127.0.0.1:", testutil.FreePort(t))
	server := startOpenSSL(t, psk, "s_server", "-quiet", "-accept", addr, "-nocert")
	h.Until("s_server listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	connected := make(chan error, 1)
	ctx, cancel := context.WithCancel(testutil.Context(t))
	defer cancel()
	go func() {
		q, err := host.DialQueue(ctx, host.TCP{
			Addr: netip.MustParseAddrPort(addr),
			PSK:  func(string, string) (*auth.TLSPSK, error) { return psk, nil },
		}, 0, 32, 0)
		if err == nil {
			err = q.Close()
		}
		connected <- err
	}()
	var req pdu.IC
	server.read(t, req[:])
	f := req.Check()
	testutil.True(t, f.OK() && req.Header().Type() == pdu.TypeICReq, "%v: % x", f, req)
	resp := pdu.ICResp(&pdu.Params{MaxH2CData: 4096})
	testutil.Value(server.in.Write(resp[:]))(h.T)
	testutil.Equal(t, <-connected, nil, "the host")
}
