package tls

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

const (
	testHost = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
	testSub  = "nqn.2026-11.io.nvmf-target:tls"
)

// needTLS skips a test where TLS is not built in.
func needTLS(t testing.TB) {
	t.Helper()
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
}

func testPSKs(t testing.TB, h auth.Hash) []auth.TLSPSK {
	t.Helper()
	k := testutil.Value(auth.NewTLSKey(h))(t)
	psks := testutil.Value(k.PSKs(testHost, testSub))(t)
	testutil.Secret(t, k.Reveal())
	for _, p := range psks {
		testutil.SecretBytes(t, p.Secret)
	}
	return psks
}

// lookup returns PSKs by identity, as copies, because servers wipe them.
func lookup(psks []auth.TLSPSK) func([]byte) []auth.TLSPSK {
	return func(identity []byte) (found []auth.TLSPSK) {
		for _, p := range psks {
			if p.Identity == string(identity) {
				p.Secret = slices.Clone(p.Secret)
				found = append(found, p)
			}
		}
		return found
	}
}

// shake runs a handshake with size bytes of a flight at a time, and returns the connections of both
// sides.
func shake(c *Client, s *Server, size int) (client, server *Conn, err error) {
	out, _, err := c.Step(nil)
	for err == nil && (client == nil || server == nil) {
		var back []byte
		for part := range slices.Chunk(out, size) {
			var b []byte
			if b, server, err = s.Step(part); err != nil {
				_, _, _ = c.Step(b)
				return nil, nil, err
			}
			back = append(back, b...)
		}
		if client != nil {
			break
		}
		if out, client, err = c.Step(back); err != nil {
			_, _, _ = s.Step(out)
		}
	}
	return client, server, err
}

// pair is two ends of a connection, and their sockets.
type pair struct {
	t              testing.TB
	client, server *Conn
	fds            [2]int // of client and server
	b              *Buffers
}

func newPair(t testing.TB, h auth.Hash) *pair {
	t.Helper()
	needTLS(t)
	psks := testPSKs(t, h)
	c, err := NewClient(&psks[0])
	testutil.Must(t, err)
	s := NewServer(lookup(psks))
	p := &pair{t: t}
	if p.client, p.server, err = shake(c, s, 1<<20); err != nil {
		t.Fatal(err)
	}
	c.Free()
	s.Free()
	if p.fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); err != nil {
		t.Fatal(err)
	}
	if p.b, err = NewBuffers(1 << 20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.client.Close()
		p.server.Close()
		_ = unix.Close(p.fds[0])
		_ = unix.Close(p.fds[1])
		_ = p.b.Close()
	})
	return p
}

// send seals data on the client and sends it.
func (p *pair) send(data []byte) (int, syscall.Errno) {
	var v [1]sys.Iovec
	sys.SetIovec(&v[0], p.b.Headers[:copy(p.b.Headers, data)])
	return p.client.Sendmsg(p.fds[0], v[:], p.b)
}

// raw sends bytes of the client unchanged.
func (p *pair) raw(b []byte) {
	p.t.Helper()
	if _, e := sys.Send(p.fds[0], b, 0); e != 0 {
		p.t.Fatal(e)
	}
}

// seal makes a record as the client would.
func (p *pair) seal(typ byte, content []byte) []byte {
	p.t.Helper()
	copy(p.b.Headers, content)
	v := p.b.vectors[:1]
	sys.SetIovec(&v[0], p.b.Headers[:len(content)])
	out := make([]byte, len(content)+64)
	n, ok := p.client.out.aead.Seal(out, p.client.out.seq, v, 0, len(content), 1<<15, typ)
	p.client.out.seq++
	testutil.MustTrue(p.t, ok, "not sealed")
	return out[:n]
}

// receive receives up to n bytes on the server.
func (p *pair) receive(n int) ([]byte, bool, syscall.Errno) {
	b := make([]byte, n)
	var v [1]sys.Iovec
	sys.SetIovec(&v[0], b)
	n, drained, e := p.server.Recvmsg(p.fds[1], v[:], p.b)
	return b[:n], drained, e
}

// TestHandshake: handshakes with every PSK of a key complete, with flights split anywhere.
func TestHandshake(t *testing.T) {
	needTLS(t)
	for _, h := range []auth.Hash{auth.SHA256, auth.SHA384} {
		psks := testPSKs(t, h)
		for i := range psks {
			for _, size := range []int{1, 7, 1 << 20} {
				c := testutil.Value(NewClient(&psks[i]))(t)
				s := NewServer(lookup(psks))
				client, server, err := shake(c, s, size)
				testutil.MustTrue(t, err == nil, "%v, compat %v: %v", psks[i], psks[i].Compat, err)
				got := s.PSK()
				testutil.True(t, got.Identity == psks[i].Identity && got.Compat == psks[i].Compat &&
					got.HostNQN == testHost && got.SubNQN == testSub, "%+v instead of %+v", got,
					psks[i])
				testutil.Equal(t, bytes.Count(got.Secret, []byte{0}), len(got.Secret),
					"the secret is not wiped")
				client.Close()
				server.Close()
				c.Free()
				s.Free()
			}
		}
	}
}

// TestNoPSK: a client with a wrong key and an unknown client get the same answer.
func TestNoPSK(t *testing.T) {
	needTLS(t)
	psks, others := testPSKs(t, auth.SHA256), testPSKs(t, auth.SHA256)
	for i := range psks {
		others[i].Identity = psks[i].Identity
	}
	foreign := psks[0]
	foreign.Identity = "Client_identity"
	for _, tc := range []struct {
		name  string
		p     auth.TLSPSK
		want  error
		alert byte
	}{
		{"another key", others[0], ErrWrongKey, alertDecryptError},
		{"unknown", testPSKs(t, auth.SHA384)[0], ErrUnknown, alertDecryptError},
		{"no identity of NVMe", foreign, ErrUnknown, alertDecryptError},
	} {
		c := testutil.Value(NewClient(&tc.p))(t)
		hello, _, _ := c.Step(nil)
		s := NewServer(lookup(psks))
		out, conn, err := s.Step(hello)
		testutil.True(t, errors.Is(err, tc.want) && conn == nil && bytes.Equal(out,
			plainAlert(tc.alert)), "%s: %v, % x", tc.name, err, out)
		c.Free()
		s.Free()
	}
}

// TestLongestIdentity: a handshake with the longest names and the longest digest works.
func TestLongestIdentity(t *testing.T) {
	needTLS(t)
	k := testutil.Value(auth.NewTLSKey(auth.SHA384))(t)
	long := func(name string) string { return name + strings.Repeat("x", 223-len(name)) }
	psks := testutil.Value(k.PSKs(long(testHost), long(testSub)))(t)
	n := len(psks[0].Identity)
	testutil.MustTrue(t, n == 521, "the longest identity has %d bytes: nothing is tested", n)
	c := testutil.Value(NewClient(&psks[0]))(t)
	defer c.Free()
	s := NewServer(lookup(psks))
	defer s.Free()
	client, server, err := shake(c, s, 1<<20)
	testutil.Must(t, err)
	client.Close()
	server.Close()
	testutil.True(t, s.PSK().HostNQN == long(testHost) && s.PSK().SubNQN == long(testSub),
		"the names are %+v", s.PSK())
}

// TestNoPSKTime: the same number of PSKs is tried for known and unknown identities. Each takes the
// same number of allocations.
func TestNoPSKTime(t *testing.T) {
	needTLS(t)
	psks, others := testPSKs(t, auth.SHA256), testPSKs(t, auth.SHA256)
	others[1].Identity = psks[1].Identity // version 0
	for i := range psks[2:] {
		psks[2+i].Identity = psks[1].Identity
	}
	c := testutil.Value(NewClient(&others[1]))(t)
	defer c.Free()
	stream, _, _ := c.Step(nil)
	hello := testutil.Value(parseHello(stream))(t)
	var tries []float64
	for _, known := range [][]auth.TLSPSK{nil, psks[1:2], psks[1:]} {
		buf := make([]auth.TLSPSK, 0, auth.MostTLSPSKs)
		tries = append(tries, testutil.AllocsPerRun(10, func() {
			if _, err := hello.choose(func([]byte) []auth.TLSPSK {
				return append(buf, known...)
			}); !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrWrongKey) {
				t.Error(err)
			}
		}))
	}
	if slack := float64(auth.MostTLSPSKs); slices.Max(tries)-slices.Min(tries) > slack {
		t.Errorf("allocations of no, one and more PSKs: %v", tries)
	}
}

// TestRecords: the records that the other side may and may not send, and the alerts it gets.
func TestRecords(t *testing.T) {
	update := []byte{messageKeyUpdate, 0, 0, 1, 0}
	many := func(p *pair, n int) (b []byte) {
		for range n {
			b = append(b, p.seal(typeApplication, nil)...)
		}
		return b
	}
	data := []byte("data")
	for _, tc := range []struct {
		name  string
		make  func(p *pair) []byte
		want  string // data, or a part of the error
		alert byte
	}{
		{"padding", func(p *pair) []byte {
			return p.seal(0, append(append(data[:4:4], typeApplication), make([]byte, 99)...))
		}, "data", 0},
		{"empty records", func(p *pair) []byte {
			return append(many(p, maxIdle), p.seal(typeApplication, data)...)
		}, "data", 0},
		{"masses of empty records", func(p *pair) []byte {
			return many(p, maxIdle+1)
		}, "in a row", alertUnexpectedMessage},
		{"forged", func(p *pair) []byte {
			b := p.seal(typeApplication, data)
			b[8]++
			return b
		}, "changed", alertBadRecordMAC},
		{"replayed", func(p *pair) []byte {
			b := p.seal(typeApplication, nil)
			return append(b, b...)
		}, "changed", alertBadRecordMAC},
		{"too long outside", func(*pair) []byte {
			return []byte{typeApplication, 3, 3, 0x41, 1, 0}
		}, "limit", alertRecordOverflow},
		{"too long inside", func(p *pair) []byte {
			return p.seal(typeApplication, make([]byte, maxContent+1))
		}, "limit", alertRecordOverflow},
		{"longest", func(p *pair) []byte {
			return p.seal(typeApplication, make([]byte, maxContent))
		}, string(make([]byte, maxContent)), 0},
		{"too short", func(*pair) []byte {
			return append([]byte{typeApplication, 3, 3, 0, 16}, make([]byte, 16)...)
		}, "short", alertDecodeError},
		{"change_cipher_spec", func(*pair) []byte {
			return []byte{20, 3, 3, 0, 1, 1}
		}, "type 20", alertUnexpectedMessage},
		{"plain alert", func(*pair) []byte {
			return plainAlert(alertUserCanceled)
		}, "type 21", alertUnexpectedMessage},
		{"nothing but padding", func(p *pair) []byte {
			return p.seal(0, make([]byte, 9))
		}, "type 0", alertUnexpectedMessage},
		{"unknown content", func(p *pair) []byte {
			return p.seal(24, data)
		}, "type 24", alertUnexpectedMessage},
		{"ClientHello", func(p *pair) []byte {
			return p.seal(typeHandshake, []byte{1, 0, 0, 1, 0})
		}, "type 1", alertUnexpectedMessage},
		{"NewSessionTicket", func(p *pair) []byte {
			return p.seal(typeHandshake, []byte{4, 0, 0, 1, 0})
		}, "type 4", alertUnexpectedMessage},
		{"empty handshake", func(p *pair) []byte {
			return p.seal(typeHandshake, nil)
		}, "empty", alertUnexpectedMessage},
		{"KeyUpdate of 2", func(p *pair) []byte {
			return p.seal(typeHandshake, []byte{24, 0, 0, 1, 2})
		}, "request 2", alertIllegalParameter},
		{"KeyUpdate that is too long", func(p *pair) []byte {
			return p.seal(typeHandshake, []byte{24, 0, 0, 2, 0, 0})
		}, "type 24", alertUnexpectedMessage},
		{"KeyUpdate and more", func(p *pair) []byte {
			return p.seal(typeHandshake, append(update, update...))
		}, "end of its record", alertUnexpectedMessage},
		{"KeyUpdate in pieces", func(p *pair) []byte {
			b := append(p.seal(typeHandshake, update[:2]), p.seal(typeHandshake, update[2:])...)
			_ = p.client.out.update()
			return append(b, p.seal(typeApplication, data)...)
		}, "data", 0},
		{"data in a KeyUpdate", func(p *pair) []byte {
			return append(p.seal(typeHandshake, update[:2]), p.seal(typeApplication, data)...)
		}, "not complete", alertUnexpectedMessage},
		{"KeyUpdate with the old key after it", func(p *pair) []byte {
			return append(p.seal(typeHandshake, update), p.seal(typeApplication, data)...)
		}, "changed", alertBadRecordMAC},
		{"an alert of 3 bytes", func(p *pair) []byte {
			return p.seal(typeAlert, []byte{1, 0, 0})
		}, "3 bytes", alertDecodeError},
		{"user_canceled", func(p *pair) []byte {
			return append(p.seal(typeAlert, []byte{1, alertUserCanceled}),
				p.seal(typeApplication, data)...)
		}, "data", 0},
		{"a fatal alert", func(p *pair) []byte {
			return p.seal(typeAlert, []byte{2, 80})
		}, "alert 80", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, auth.SHA256)
			p.raw(tc.make(p))
			got, _, e := p.receive(1 << 15)
			if e == 0 {
				testutil.MustTrue(t, string(got) == tc.want, "%d bytes instead of %q", len(got),
					tc.want)
				return
			}
			testutil.MustTrue(t, e == syscall.EPROTO && strings.Contains(p.server.Err().Error(),
				tc.want), "%v: %v", e, p.server.Err())
			_, _, again := p.receive(1)
			testutil.True(t, again == syscall.EPROTO, "it goes on: %v", again)
			p.server.SendAlert(p.fds[1], p.b)
			b := make([]byte, 100)
			n, e := sys.Recv(p.fds[0], b, 0)
			if tc.alert == 0 {
				testutil.True(t, e == syscall.EAGAIN, "an alert is answered: % x", b[:n])
				return
			}
			_, _ = p.client.open(b[:n], nil)
			testutil.Fails(t, p.client.Err(), "alert", "no alert: %v", p.client.Err())
			testutil.True(t, b[recordHeader] == levelFatal && b[recordHeader+1] == tc.alert,
				"alert %d instead of %d", b[recordHeader+1], tc.alert)
		})
	}
}

// TestEnd: close_notify ends the stream, and earlier data is delivered.
func TestEnd(t *testing.T) {
	p := newPair(t, auth.SHA384)
	p.send([]byte("last"))
	p.client.SendAlert(p.fds[0], p.b)
	b, drained, e := p.receive(99)
	testutil.True(t, string(b) == "last" && !drained && e == 0, "%q, %v, %v", b, drained, e)
	if b, _, e := p.receive(99); len(b) > 0 || e != 0 || p.server.Err() != io.EOF {
		t.Errorf("%q, %v, %v", b, e, p.server.Err())
	}
}

// TestStream: data arrives unchanged, split anywhere, with KeyUpdates of both sides.
func TestStream(t *testing.T) {
	defer func(n uint64) { rekeyAfter = n }(rekeyAfter)
	rekeyAfter = 5
	for seed := range uint64(20) {
		source := rand.NewChaCha8([32]byte{byte(seed)})
		r := rand.New(source)
		p := newPair(t, []auth.Hash{auth.SHA256, auth.SHA384}[seed%2])
		if seed%3 == 0 {
			p.client.most = minFragment
		}
		_ = unix.SetsockoptInt(p.fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<14)
		var sent, got []byte
		b := make([]byte, 300<<10)
		pending := false
		for len(sent) < 2<<20 || len(got) < len(sent) {
			if len(sent) < 2<<20 && r.IntN(2) == 0 {
				data := b[:1+r.IntN(len(b))]
				_, _ = source.Read(data)
				n, e := p.send(data)
				testutil.MustTrue(t, e == 0 || e == syscall.EAGAIN, "seed %d: %v, %v", seed, e,
					p.client.Err())
				sent = append(sent, data[:n]...)
				pending = pending || p.client.Pending()
			} else if e := p.client.flush(p.fds[0]); e != 0 && e != syscall.EAGAIN {
				t.Fatal(e)
			}
			var v [4]sys.Iovec
			var room [4][]byte
			for i := range v {
				room[i] = make([]byte, 1+r.IntN(1<<r.IntN(18)))
				sys.SetIovec(&v[i], room[i])
			}
			if r.IntN(5) == 0 {
				p.server.answer = true // sends a KeyUpdate; the client must follow
			}
			n, drained, e := p.server.Recvmsg(p.fds[1], v[:], p.b)
			switch {
			case e == syscall.EAGAIN && !drained, e != 0 && e != syscall.EAGAIN:
				t.Fatalf("seed %d: %v, %v, %v", seed, drained, e, p.server.Err())
			case len(p.server.kept) > maxRecord:
				t.Fatalf("seed %d: %d bytes are kept", seed, len(p.server.kept))
			}
			got = append(got, bytes.Join(room[:], nil)[:n]...)
			testutil.MustTrue(t, !drained || !p.server.Ready(),
				"seed %d: drained, but there is more", seed)
		}
		testutil.MustTrue(t, bytes.Equal(sent, got) && pending,
			"seed %d: %d bytes became %d, pending %v", seed, len(sent), len(got), pending)
	}
}

// TestPartial: a partly received record is reported, so that its rest can be requested.
func TestPartial(t *testing.T) {
	p := newPair(t, auth.SHA256)
	record := p.seal(typeApplication, []byte("some data"))
	last := len(record) - 1
	for _, part := range []struct {
		b       []byte
		n       int
		partial bool
	}{{record[:1], 0, true}, {record[1:last], 0, true}, {record[last:], 9, false}} {
		p.raw(part.b)
		if b, drained, _ := p.receive(100); len(b) != part.n || !drained ||
			p.server.Partial() != part.partial {
			t.Errorf("got %d bytes, drained %v, partial %v, want %d, true, %v", len(b), drained,
				p.server.Partial(), part.n, part.partial)
		}
	}
}

// TestKeyUpdateRequested: the answer comes before the next data, once.
func TestKeyUpdateRequested(t *testing.T) {
	p := newPair(t, auth.SHA256)
	before := slices.Clone(p.client.in.secret)
	for range 3 {
		p.raw(p.seal(typeHandshake, []byte{messageKeyUpdate, 0, 0, 1, 1}))
		testutil.Must(t, p.client.out.update())
	}
	_, _, e := p.receive(9)
	testutil.MustTrue(t, e == syscall.EAGAIN, "%v %v", e, p.server.Err())
	var v [1]sys.Iovec
	for range 2 {
		sys.SetIovec(&v[0], p.b.Headers[:copy(p.b.Headers, "data")])
		_, e := p.server.Sendmsg(p.fds[1], v[:], p.b)
		testutil.MustTrue(t, e == 0, "%v", e)
	}
	b := make([]byte, 99)
	sys.SetIovec(&v[0], b)
	n, _, e := p.client.Recvmsg(p.fds[0], v[:], p.b)
	testutil.True(t, string(b[:n]) == "datadata", "%q, %v, %v", b[:n], e, p.client.Err())
	testutil.True(t, p.client.in.seq == 2 && !bytes.Equal(p.client.in.secret, before),
		"%d records with the key, which is new: %v", p.client.in.seq,
		!bytes.Equal(p.client.in.secret, before))
}

// TestNoAllocation: neither direction allocates.
func TestNoAllocation(t *testing.T) {
	p := newPair(t, auth.SHA256)
	b := make([]byte, 100<<10)
	var v, w [1]sys.Iovec
	run := func() {
		sys.SetIovec(&v[0], p.b.Headers[:100<<10])
		if n, e := p.client.Sendmsg(p.fds[0], v[:], p.b); e != 0 || n != len(b) {
			t.Fatal(n, e)
		}
		for got := 0; got < len(b); {
			sys.SetIovec(&w[0], b[got:])
			n, _, e := p.server.Recvmsg(p.fds[1], w[:], p.b)
			testutil.MustEqual(t, e, 0, "")
			got += n
		}
	}
	run()
	n := testutil.AllocsPerRun(100, run)
	testutil.True(t, n == 0, "%v allocations", n)
}
