package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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
	req := pdu.ICReq(&pdu.Params{}, 1)
	testutil.Value(client.in.Write(req[:]))(h.T)
	var resp pdu.IC
	client.read(t, resp[:])
	f := resp.Check()
	testutil.True(t, f.OK() && resp.Header().Type() == pdu.TypeICResp, "%v: % x", f, resp)
	o := Variant{}.HostOptions()
	op := host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
	testutil.Value(client.in.Write(hosttest.InCapsule(op)))(h.T)
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
	testutil.Check(t, testutil.Receive(t, "the host", connected))
}
