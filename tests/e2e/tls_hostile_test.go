package e2e

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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
