package tls

import (
	"bytes"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// FuzzHello: for any beginning of a client, in two pieces, the handshake of the server ends with an
// alert or waits for more.
func FuzzHello(f *testing.F) {
	needTLS(f)
	psks := testPSKs(f, auth.SHA256)
	c := testutil.Value(NewClient(&psks[0]))(f)
	hello, _, _ := c.Step(nil)
	c.Free()
	f.Add(hello, uint16(9))
	f.Add(hello[:len(hello)-1], uint16(0))
	f.Add([]byte{typeHandshake, 3, 1, 0, 5, messageClientHello, 0, 0, 1, 0}, uint16(1))
	f.Fuzz(func(t *testing.T, in []byte, at uint16) {
		in = in[:min(len(in), MaxInput)]
		s := NewServer(lookup(psks))
		defer s.Free()
		cut := min(int(at), len(in))
		out, conn, err := s.Step(in[:cut])
		if err == nil {
			out, conn, err = s.Step(in[cut:])
		}
		testutil.MustTrue(t, conn == nil, "a ClientHello is a complete handshake")
		if err != nil && len(out) > 0 && out[0] != typeAlert && out[0] != typeHandshake {
			t.Errorf("%v: % x", err, out)
		}
	})
}

// FuzzHandshake: after the first flight of the server, or its HelloRetryRequest, only the Finished
// of the client completes the handshake. in is records to be sealed as the client would, or with
// retry and raw the bytes of the stream.
func FuzzHandshake(f *testing.F) {
	needTLS(f)
	psks := testPSKs(f, auth.SHA256)
	begin := func(f testing.TB, retry bool) (*rawClient, *Server) {
		s, c := NewServer(lookup(psks)), newRawClient(psks[0])
		h := c.hello()
		if retry {
			h.shares = nil
		}
		out, _, err := s.Step(c.send(h))
		testutil.Must(f, err)
		if err := c.receive(out); err != nil || c.retried != retry {
			f.Fatal(err)
		}
		return c, s
	}
	retried, s := begin(f, true)
	s.Free()
	f.Add(retried.send(retried.hello()), true, false)
	f.Add([]byte{typeChangeCipherSpec, 3, 3, 0, 1, 1, typeHandshake, 3, 3, 0, 4}, false, true)
	f.Add([]byte{typeHandshake, 4, messageFinished, 0, 0, 32, typeHandshake, 0}, false, false)
	f.Add([]byte{typeAlert, 2, levelFatal, 40, typeApplication, 1, 9}, false, false)
	f.Add([]byte{right}, false, false)
	f.Add([]byte{typeAlert, 2, levelWarning, alertUserCanceled, right}, false, false)
	f.Add([]byte{typeHandshake, 5, messageKeyUpdate, 0, 0, 1, 0, right}, false, false)
	f.Fuzz(func(t *testing.T, in []byte, retry, raw bool) {
		c, s := begin(t, retry)
		defer s.Free()
		flight, must, may := in, false, false
		if !retry && !raw {
			flight, must, may = c.flight(in)
		}
		out, conn, err := s.Step(flight[:min(len(flight), MaxInput)])
		if conn != nil {
			conn.Close()
		}
		if done := conn != nil; done && !may || must && !done {
			t.Errorf("complete: %v, it must be: %v, it may be: %v: %v", done, must, may, err)
		}
		if got := c.receive(out); got != nil {
			t.Errorf("%v: % x", got, out)
		}
	})
}

// right stands for the right Finished in the input of flight.
const right = 0

// flight seals records, each preceded by its type, length and content. If it begins with the right
// Finished the handshake must complete. It may complete if only alerts come before that, because
// warnings do not end the handshake (RFC 8446 section 6.1).
func (c *rawClient) flight(in []byte) (out []byte, must, may bool) {
	must = len(in) > 0 && in[0] == right
	for alerts := true; len(in) > 0 && len(out) < MaxInput/2; {
		typ := in[0]
		if typ == right {
			out = append(out, c.out.seal(typeHandshake, c.finished)...)
			may = may || alerts
			in = in[1:]
			continue
		}
		if len(in) < 2 {
			break
		}
		n := min(int(in[1]), len(in)-2)
		out = append(out, c.out.seal(typ, in[2:2+n])...)
		alerts = alerts && typ == typeAlert
		in = in[2+n:]
	}
	return out, must, may
}

// FuzzRecords: for any records, received into small and large buffers, data is delivered as it was
// sealed, or the connection fails permanently.
func FuzzRecords(f *testing.F) {
	needTLS(f)
	f.Add([]byte{typeApplication, 4, 1, 2, 3, 4, typeHandshake, 5, 24, 0, 0, 1, 1}, uint16(3),
		false)
	f.Add([]byte{0, 3, 1, typeApplication, 0, typeAlert, 2, 1, 0}, uint16(300), true)
	f.Fuzz(func(t *testing.T, in []byte, room uint16, raw bool) {
		p := newPair(t, auth.SHA256)
		_ = unix.SetsockoptInt(p.fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
		var stream, want []byte
		for clean := true; len(in) > 2 && len(stream) < 60<<10; {
			typ, n := in[0], min(int(in[1]), len(in)-2)
			content := in[2 : 2+n]
			in = in[2+n:]
			stream = append(stream, p.seal(typ, content)...)
			if clean = clean && typ == typeApplication; clean {
				want = append(want, content...)
			}
		}
		if raw {
			stream = append(stream, in...)
		}
		if len(stream) == 0 {
			return
		}
		p.raw(stream)
		_ = unix.Shutdown(p.fds[0], unix.SHUT_WR)
		var got []byte
		for {
			b, _, e := p.receive(int(room) + 1)
			got = append(got, b...)
			if e == 0 && len(b) > 0 {
				continue
			}
			testutil.MustTrue(t, e == 0 || e == syscall.EPROTO, "%v", e)
			break
		}
		testutil.MustTrue(t, bytes.HasPrefix(got, want) || p.server.Err() != nil,
			"%x instead of %x", got, want)
	})
}
