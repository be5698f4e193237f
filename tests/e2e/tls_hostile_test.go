package e2e

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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
