package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

func policyTLS(p fabric.TLSPolicy) func(*tcp.Config) {
	return func(c *tcp.Config) {
		RequireTLS(c)
		c.TLS = func(uint16) fabric.TLSPolicy { return p }
	}
}

// TestTLSKeyRemoved: a handshake is useless once its key is no longer valid.
func TestTLSKeyRemoved(t *testing.T) {
	NeedTLS(t)
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.KeyCounts = func(nqn string, k *auth.TLSKey) bool {
			testutil.True(t, nqn == HostNQN && k.Equal(TLSKey), "the key of %s is asked for", nqn)
			return false
		}
	}})
	v := Variant{TCP: host.TCP{PSK: tlsPSK(TLSKey)}}
	_, err := host.Connect(t.Context(), h.Transport(v), v.HostOptions())
	var st nvme.Status
	testutil.True(t, errors.As(err, &st) && st.Code() == nvme.ConnectInvalidParameters,
		"the host is told: %v", err)
	testutil.True(t, strings.Contains(h.Log.String(), "has changed since the TLS handshake"),
		"the log does not say why")
}

// TestTLSPolicies: the hosts that may connect, and the log lines about others.
func TestTLSPolicies(t *testing.T) {
	t.Parallel()
	NeedTLS(t)
	type psk = func(host, sub string) (*auth.TLSPSK, error)
	all := func(change func(psks []auth.TLSPSK) *auth.TLSPSK) psk {
		return func(host, sub string) (*auth.TLSPSK, error) {
			psks, err := TLSKey.PSKs(host, sub)
			return change(psks), err
		}
	}
	const off, allowed, required = fabric.TLSOff, fabric.TLSAllowed, fabric.TLSRequired
	for _, tc := range []struct {
		name   string
		policy fabric.TLSPolicy
		psk    psk
		log    string // "": the host connects
	}{
		{"plain, off", off, nil, ""},
		{"plain, allowed", allowed, nil, ""},
		{"plain, required", required, nil, "the host does not use TLS"},
		{"TLS, off", off, tlsPSK(TLSKey), "which is off at this listener"},
		{"TLS, allowed", allowed, tlsPSK(TLSKey), ""},
		{"TLS, required", required, tlsPSK(TLSKey), ""},
		{"SHA-384", required, tlsPSK(tlsKey384), ""},
		{"another key", required, tlsPSK(newTLSKey(auth.SHA256)), "no host has a key with the PSK"},
		{"another key, identity 0", required, all(func(psks []auth.TLSPSK) *auth.TLSPSK {
			psks[1].Secret = psks[0].Secret
			return &psks[1]
		}), "the client has another key"},
		{"identity 0", required, all(func(p []auth.TLSPSK) *auth.TLSPSK { return &p[1] }), ""},
		{"compat", required, all(func(p []auth.TLSPSK) *auth.TLSPSK { return &p[2] }), ""},
		{"another host", required, func(_, sub string) (*auth.TLSPSK, error) {
			return tlsPSK(TLSKey)(HostNQN2, sub)
		}, "the PSK of TLS is that of another host"},
		{"another subsystem", required, func(host, _ string) (*auth.TLSPSK, error) {
			return tlsPSK(TLSKey)(host, OtherSub)
		}, "the PSK of TLS is for another subsystem"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New(t, Options{TCP: policyTLS(tc.policy)})
			v := Variant{TCP: host.TCP{PSK: tc.psk}}
			c, err := host.Connect(testutil.Context(t), h.Transport(v), v.HostOptions())
			if err == nil {
				c.Close()
			}
			testutil.True(t, (err == nil) == (tc.log == ""), "connected: %v", err)
			if tc.log != "" {
				h.Until("the log says why", func() bool {
					return strings.Contains(h.Log.String(), tc.log)
				})
			}
			cipher := "cipher=TLS_AES_128_GCM_SHA256"
			if tc.name == "SHA-384" {
				cipher = "cipher=TLS_AES_256_GCM_SHA384"
			}
			testutil.True(t, tc.log != "" || tc.psk == nil || strings.Contains(h.Log.String(),
				cipher), "the log does not say %q", cipher)
			testutil.True(t, tc.name != "compat" || strings.Contains(h.Log.String(),
				"labels=compat"), "the log does not say which labels the host uses")
		})
	}
}

// recordHello returns the ClientHello of a host.
func recordHello(t *testing.T, h *Env) []byte {
	t.Helper()
	var dial sync.WaitGroup
	defer dial.Wait()
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(h.T)
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dial.Go(func() {
		_, _ = host.DialQueue(ctx, host.TCP{
			Addr: netip.MustParseAddrPort(l.Addr().String()), PSK: tlsPSK(TLSKey),
		}, 0, 32, 0)
	})
	c := testutil.Value(l.Accept())(h.T)
	defer c.Close()
	b := make([]byte, 4<<10)
	n := testutil.Value(c.Read(b))(h.T)
	testutil.MustTrue(t, n >= 5 && n == 5+int(binary.BigEndian.Uint16(b[3:])),
		"no ClientHello: % x", b[:n])
	return b[:n]
}

// shake completes a handshake with the target.
func shake(c net.Conn) error {
	psk, err := tlsPSK(TLSKey)("", "")
	if err != nil {
		return err
	}
	return hosttest.Shake(c, psk)
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
