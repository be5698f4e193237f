package tls

import (
	"bytes"
	"fmt"
	"math/big"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Alerts of RFC 8446 section 6.2 that only OpenSSL sends.
const (
	alertHandshakeFailure = 40
	alertProtocolVersion  = 70
	alertMissingExtension = 109

	complete = -1 // no alert: the handshake is complete
	waits    = -2 // not complete, but continues
	silent   = -3 // it fails without an alert

	// olderIllegal is added to an alert for which OpenSSL 3.0 sends illegal_parameter.
	olderIllegal = 1 << 8
)

// hostileHello is a handshake with a wrong ClientHello. Numbers are sections of RFC 8446.
type hostileHello struct {
	name          string
	first, second func(h *hello) // second: after a HelloRetryRequest
	alert         int
}

func hostileHellos(t testing.TB) []hostileHello {
	p, one := ffdhe2048(t), big.NewInt(1)
	ffdhe := func(y *big.Int) func(h *hello) {
		return func(h *hello) {
			h.groups = []uint16{groupFFDHE2048}
			h.shares = []share{{groupFFDHE2048, y.FillBytes(make([]byte, 256))}}
		}
	}
	other := testPSKs(t, auth.SHA256)[0]
	retry := func(h *hello) { h.shares = nil }
	early := func(h *hello) { h.before = []extension{{extensionEarlyData, nil}} }
	onlyPSK := func(h *hello) { h.modes = []byte{modePSK} }
	signatures := extension{13, vector16(numbers([]uint16{0x0804}))}
	return []hostileHello{
		{"good", func(*hello) {}, nil, complete},
		{"other first", func(h *hello) {
			h.psks = append([]auth.TLSPSK{other}, h.psks...)
		}, nil, complete},
		// Without a usable PSK only certificates are left. For them something is missing (9.2), or
		// the server has none (4.1.1).
		{"psk_ke", onlyPSK, nil, alertMissingExtension},
		{"psk_ke, and certificates", func(h *hello) {
			onlyPSK(h)
			h.before = []extension{signatures}
		}, nil, alertHandshakeFailure},
		{"no modes", func(h *hello) { h.modes = nil }, nil, alertMissingExtension}, // 4.2.9
		{"unknown mode", func(h *hello) { h.modes = []byte{9} }, nil, alertMissingExtension},
		{"TLS 1.2", func(h *hello) { h.versions = nil }, nil, alertProtocolVersion}, // D.2
		{"TLS 1.2 in the extension", func(h *hello) {
			h.versions = []uint16{0x0303}
		}, nil, alertProtocolVersion}, // 4.2.1
		{"suite of another hash", func(h *hello) {
			h.suites = []uint16{suiteSHA384}
		}, nil, alertHandshakeFailure}, // 4.1.1
		{"no suite", func(h *hello) { h.suites = []uint16{0x1303} }, nil, alertHandshakeFailure},
		{"no common group", func(h *hello) {
			h.groups = []uint16{groupUnknown}
			h.shares = []share{{groupUnknown, make([]byte, 32)}}
		}, nil, alertHandshakeFailure}, // 4.1.1
		{"share of a group that is not offered", func(h *hello) {
			h.groups = []uint16{groupP256}
		}, nil, alertIllegalParameter}, // 4.2.8
		{"binder", func(h *hello) { h.spoil = 1 }, nil, alertDecryptError}, // 4.2.11, 6.2
		{"identity", func(h *hello) { h.psks = []auth.TLSPSK{other} }, nil, alertDecryptError},
		{"X25519 of 31 bytes", func(h *hello) {
			h.shares[0].value = h.shares[0].value[1:]
		}, nil, alertIllegalParameter},
		{"X25519 of zeroes", func(h *hello) {
			h.shares[0].value = make([]byte, 32)
		}, nil, alertIllegalParameter}, // 7.4.2
		{"X25519 of order 8", func(h *hello) { // RFC 7748 section 7
			h.shares[0].value = append([]byte{1}, make([]byte, 31)...)
		}, nil, alertIllegalParameter},
		{"P-256 beside the curve", func(h *hello) {
			h.shares = []share{{groupP256, append([]byte{4}, make([]byte, 64)...)}}
		}, nil, alertIllegalParameter}, // 4.2.8.2
		{"ffdhe2048 of 0", ffdhe(new(big.Int)), nil, alertIllegalParameter}, // 4.2.8.1
		{"ffdhe2048 of 1", ffdhe(one), nil, alertIllegalParameter},
		{"ffdhe2048 of p-1", ffdhe(new(big.Int).Sub(p, one)), nil, alertIllegalParameter},
		{"ffdhe2048 of p", ffdhe(p), nil, alertIllegalParameter},
		{"ffdhe2048 of p+1", ffdhe(new(big.Int).Add(p, one)), nil, alertIllegalParameter},
		{"pre_shared_key not last", func(h *hello) {
			h.after = []extension{{99, nil}}
		}, nil, alertIllegalParameter}, // 4.2.11
		{"pre_shared_key twice", func(h *hello) {
			h.before = []extension{{extensionPreSharedKey, vector16(nil)}}
		}, nil, alertIllegalParameter}, // 4.2
		{"pre_shared_key twice at the end", func(h *hello) {
			h.after = []extension{{extensionPreSharedKey, vector16(nil)}}
		}, nil, alertIllegalParameter},
		{"another extension twice", func(h *hello) {
			h.before = []extension{{extensionModes, []byte{1, 1}}}
		}, nil, alertIllegalParameter},
		{"no binder", func(h *hello) { h.binders = -1 }, nil, alertIllegalParameter}, // 4.2.11
		{"two binders", func(h *hello) { h.binders = 2 }, nil, alertIllegalParameter},
		{"one binder of two", func(h *hello) {
			h.psks, h.binders = append(h.psks, other), 1
		}, nil, alertIllegalParameter},
		{"one binder of six", func(h *hello) {
			h.psks, h.binders = append(h.psks, other, other, other, other, other), 1
		}, nil, alertIllegalParameter},
		{"early_data", early, nil, complete}, // it is refused (4.2.10)
		{"early_data with content", func(h *hello) {
			h.before = []extension{{extensionEarlyData, []byte{1}}}
		}, nil, alertDecodeError},

		{"retry", retry, func(*hello) {}, complete}, // 4.1.4
		{"retry, no share again", retry, retry, alertIllegalParameter},
		{"retry, share of another group", retry, ffdhe(big.NewInt(2)), alertIllegalParameter},
		{"retry, another identity", retry, func(h *hello) {
			h.psks = []auth.TLSPSK{other}
		}, alertMissingExtension}, // 9.2
		{"retry, no PSK", retry, func(h *hello) { h.psks = nil }, alertMissingExtension},
		{
			"retry, binder", retry, func(h *hello) { h.spoil = 1 },
			alertDecryptError + olderIllegal,
		}, // 6.2
		{"retry, suite of another hash", retry, func(h *hello) {
			h.suites = []uint16{suiteSHA384}
		}, alertHandshakeFailure},
		{"retry, early_data", retry, early, alertIllegalParameter}, // 4.1.2
		{"retry, psk_ke", retry, onlyPSK, alertMissingExtension},
	}
}

// hostileFlight is the bytes that a client sends instead of its Finished.
type hostileFlight struct {
	name  string
	send  func(c *rawClient) []byte
	alert int
}

func hostileFlights() []hostileFlight {
	const done, ccs = typeHandshake, typeChangeCipherSpec
	sealed := func(typ byte, content ...byte) func(c *rawClient) []byte {
		return func(c *rawClient) []byte { return c.out.seal(typ, content) }
	}
	plain := func(b ...byte) func(*rawClient) []byte { return func(*rawClient) []byte { return b } }
	finished := func(c *rawClient) []byte { return c.out.seal(done, c.finished) }
	changes := func(n int) func(c *rawClient) []byte {
		return func(c *rawClient) []byte {
			return append(bytes.Repeat(plainRecord(ccs, []byte{1}), n), finished(c)...)
		}
	}
	skipped := func(n, size int) func(c *rawClient) []byte {
		return func(c *rawClient) []byte {
			return append(bytes.Repeat(plainRecord(typeApplication, make([]byte, size)), n),
				finished(c)...)
		}
	}
	const unexpected = alertUnexpectedMessage
	return []hostileFlight{
		{"good", finished, complete},
		{"Finished in pieces", func(c *rawClient) []byte {
			return append(c.out.seal(done, c.finished[:9]), c.out.seal(done, c.finished[9:])...)
		}, complete},
		{"half a record", func(c *rawClient) []byte { return finished(c)[:30] }, waits},
		{"half a Finished", func(c *rawClient) []byte {
			return c.out.seal(done, c.finished[:20])
		}, waits},
		{"data in a Finished", func(c *rawClient) []byte {
			return append(c.out.seal(done, c.finished[:20]), c.out.seal(typeApplication, nil)...)
		}, unexpected}, // 5.1
		{"forged Finished", func(c *rawClient) []byte {
			c.finished[9] ^= 1
			return finished(c)
		}, alertDecryptError}, // 4.4.4
		{"short Finished", func(c *rawClient) []byte {
			c.finished[3]--
			return c.out.seal(done, c.finished[:len(c.finished)-1])
		}, alertDecodeError}, // 6.2
		{"long Finished", func(c *rawClient) []byte {
			c.finished[3]++
			return c.out.seal(done, append(c.finished, 0))
		}, alertDecodeError},
		{"two Finished in a record", func(c *rawClient) []byte {
			return c.out.seal(done, append(c.finished, c.finished...))
		}, unexpected}, // 5.1
		{"Finished that is not sealed", func(c *rawClient) []byte {
			return plainRecord(done, c.finished)
		}, unexpected},
		{"Finished with the key of data", func(c *rawClient) []byte {
			return c.outApp.seal(done, c.finished)
		}, alertBadRecordMAC}, // 5.2
		{"Finished of the server", func(c *rawClient) []byte {
			verify := c.k.finished(c.client, c.transcript[:len(c.transcript)-len(c.finished)])
			return c.out.seal(done, append(c.finished[:4:4], verify...))
		}, alertDecryptError},
		{"Finished twice", func(c *rawClient) []byte {
			b := finished(c)
			return append(b, b...)
		}, alertBadRecordMAC}, // the key has changed
		{"Finished twice, sealed", func(c *rawClient) []byte {
			return append(finished(c), c.outApp.seal(done, c.finished)...)
		}, unexpected},
		{"ClientHello again", func(c *rawClient) []byte {
			return plainRecord(done, c.hello().message(nil))
		}, unexpected}, // 4.1.2
		{"ClientHello again, sealed", func(c *rawClient) []byte {
			return c.out.seal(done, c.hello().message(nil))
		}, unexpected},
		{"KeyUpdate", sealed(done, messageKeyUpdate, 0, 0, 1, 0), unexpected}, // 4.6.3
		{"end of early data", sealed(done, 5, 0, 0, 0), unexpected},           // 4.5
		{"Certificate", sealed(done, 11, 0, 0, 4, 0, 0, 0, 0), unexpected},    // 4.4.2
		{"no handshake", sealed(done), unexpected},                            // 5.1
		{"data", sealed(typeApplication, 1), unexpected},
		{"no data", sealed(typeApplication), unexpected},
		{"nothing", sealed(0), unexpected}, // 5.4
		{"unknown type", sealed(24, 1), unexpected},
		{"unknown type, not sealed", plain(99, 3, 3, 0, 4, 1, 2, 3, 4), unexpected}, // 5
		{"forged", plain(plainRecord(typeApplication, make([]byte, 40))...), alertBadRecordMAC},
		{"too long", plain(typeApplication, 3, 3, 0xFF, 0xFF), alertRecordOverflow}, // 5.2
		{"fatal alert", sealed(typeAlert, levelFatal, alertHandshakeFailure), silent},
		{"alert, not sealed", plain(plainAlert(alertHandshakeFailure)...), silent},
		{"close_notify", sealed(typeAlert, levelWarning, alertCloseNotify), silent},

		{"change_cipher_spec", changes(1), complete}, // 5, D.4
		{"two change_cipher_spec", changes(2), complete},
		{"many change_cipher_spec", changes(64), unexpected},
		{"change_cipher_spec of 2", plain(ccs, 3, 3, 0, 1, 2), unexpected + olderIllegal}, // 5
		{"change_cipher_spec of 2 bytes", plain(ccs, 3, 3, 0, 2, 1, 1), unexpected + olderIllegal},
		{"change_cipher_spec of 0 bytes", plain(ccs, 3, 3, 0, 0), unexpected + olderIllegal},
		{"change_cipher_spec, sealed", sealed(ccs, 1), unexpected},
		{"change_cipher_spec after Finished", func(c *rawClient) []byte {
			return append(finished(c), plainRecord(ccs, []byte{1})...)
		}, unexpected}, // 5

		// Records that cannot be opened are refused early data (4.2.10).
		{earlyData, skipped(3, 1000), complete},
		{earlyData + " without end", skipped(2, 12<<10), unexpected},
	}
}

// earlyData begins the names of flights after a ClientHello with early_data.
const earlyData = "early data"

// ffdhe2048 is the prime of RFC 7919 appendix A.1.
func ffdhe2048(t testing.TB) *big.Int {
	t.Helper()
	p, ok := new(big.Int).SetString("FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1"+
		"D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A"+
		"D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935984F0C70E0E68B77"+
		"E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB"+
		"B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2EC"+
		"C03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005"+
		"C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF", 16)
	testutil.MustTrue(t, ok && p.BitLen() == 2048 && p.ProbablyPrime(1), "not the prime")
	return p
}

// outcome checks the result of a handshake step, and that the peer learns no secret.
func outcome(c *rawClient, s *Server, conn *Conn, failed error, out []byte, want int) error {
	if err := c.receive(out); err != nil {
		return err
	}
	got := c.alert
	switch {
	case conn != nil && conn.Err() != nil:
		got = int(conn.alert)
	case conn == nil && failed == nil:
		got = waits
	case failed != nil && c.alert < 0:
		got = silent
	}
	if want > olderIllegal {
		if want -= olderIllegal; got == alertIllegalParameter {
			want = got
		}
	}
	text := fmt.Sprint(failed, s.PSK())
	switch secret := c.psk.Secret; {
	case got != want:
		return fmt.Errorf("alert %d instead of %d: %s", got, want, text)
	case bytes.Contains(out, secret[:8]), strings.Contains(text, string(secret[:8])),
		strings.Contains(text, fmt.Sprintf("%x", secret[:8])):
		return fmt.Errorf("the text reveals the PSK: %s", text)
	case len(bytes.Trim(s.psk.Secret, "\x00")) > 0:
		return fmt.Errorf("the secret is not wiped")
	}
	return nil
}

func runHello(psks []auth.TLSPSK, tc *hostileHello) error {
	s, c := NewServer(lookup(psks)), newRawClient(psks[0])
	defer s.Free()
	first, second := c.hello(), c.hello()
	tc.first(first)
	if tc.second != nil {
		tc.second(second)
	}
	err := c.start(s, first, second)
	if c.retried != (tc.second != nil) {
		return fmt.Errorf("HelloRetryRequest: %v", c.retried)
	}
	if err != nil || tc.alert != complete {
		return outcome(c, s, nil, err, nil, tc.alert)
	}
	return runFlight(c, s, &hostileFlight{
		"", func(c *rawClient) []byte { return c.out.seal(typeHandshake, c.finished) }, complete,
	})
}

// runFlight ends a handshake, and receives the bytes after it.
func runFlight(c *rawClient, s *Server, tc *hostileFlight) error {
	if c.finished == nil {
		return fmt.Errorf("no Finished of the server, alert %d", c.alert)
	}
	in := tc.send(c)
	var out []byte
	var conn *Conn
	var err error
	for len(in) > 0 && err == nil && conn == nil {
		var b []byte
		n := min(len(in), MaxInput)
		b, conn, err = s.Step(in[:n])
		out, in = append(out, b...), in[n:]
	}
	if conn != nil {
		defer conn.Close()
		if n := conn.record(conn.kept); n > 0 {
			conn.open(bytes.Clone(conn.kept[:n]), nil)
		}
	}
	return outcome(c, s, conn, err, out, tc.alert)
}

// hostile runs all handshakes and reports the name and the error of each.
func hostile(t testing.TB, report func(name string, err error)) {
	psks := testPSKs(t, auth.SHA256)
	for _, tc := range hostileHellos(t) {
		report("hello/"+tc.name, runHello(psks, &tc))
	}
	for _, tc := range hostileFlights() {
		s, c := NewServer(lookup(psks)), newRawClient(psks[0])
		h := c.hello()
		if strings.HasPrefix(tc.name, earlyData) {
			h.before = []extension{{extensionEarlyData, nil}}
		}
		err := c.start(s, h, nil)
		if err == nil {
			err = runFlight(c, s, &tc)
		}
		s.Free()
		report("flight/"+tc.name, err)
	}
}

// TestHostileHandshakes: wrong messages of a client end its handshake with the alert of RFC 8446;
// unusual but valid ones do not.
func TestHostileHandshakes(t *testing.T) {
	needTLS(t)
	hostile(t, func(name string, err error) {
		t.Run(name, func(t *testing.T) { testutil.Check(t, err) })
	})
}

// TestHostileMemory: handshakes leave no memory and no goroutine, in any outcome.
func TestHostileMemory(t *testing.T) {
	needTLS(t)
	const limit = 12 << 20
	// of about 80 handshakes; one takes 58 KiB
	// so that a leak of one per round is found
	rounds := testutil.Rounds(15, 300)
	run := func(n int) {
		for range n {
			hostile(t, func(name string, err error) {
				testutil.MustTrue(t, err == nil, "%v %v", name, err)
			})
		}
		runtime.GC()
	}
	run(3)
	before, goroutines := resident(t), runtime.NumGoroutine()
	run(rounds)
	grown := resident(t) - before
	testutil.True(t, grown <= limit, "%d rounds have left %d KiB", rounds, grown>>10)
	n := runtime.NumGoroutine()
	testutil.True(t, n <= goroutines, "%d goroutines instead of %d", n, goroutines)
}

// resident returns the memory of this process.
func resident(t *testing.T) int {
	t.Helper()
	b := testutil.Value(os.ReadFile("/proc/self/statm"))(t)
	var size, pages int
	testutil.Value(fmt.Sscan(string(b), &size, &pages))(t)
	return pages * os.Getpagesize()
}

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
