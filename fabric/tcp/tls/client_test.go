package tls

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Numbers of RFC 8446 that only a client needs.
const (
	typeChangeCipherSpec = 20 // section 5.1

	messageServerHello = 2 // section 4
	messageFinished    = 20

	extensionGroups    = 10 // section 4.2
	extensionEarlyData = 42
	extensionVersions  = 43
	extensionModes     = 45
	extensionKeyShare  = 51

	modePSK, modePSKWithDHE = 0, 1 // section 4.2.9

	groupP256, groupX25519       = 0x0017, 0x001D // section 4.2.7
	groupFFDHE2048, groupUnknown = 0x0100, 0x0A0A
	suiteSHA256, suiteSHA384     = 0x1301, 0x1302 // appendix B.4
)

// retryRandom is the random value of a HelloRetryRequest, the SHA-256 of its name (section 4.1.3).
var retryRandom = [32]byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// extract is HKDF-Extract (section 7.1); nil stands for zeroes.
func (k schedule) extract(salt, ikm []byte) []byte {
	zeroes := make([]byte, k().Size())
	if salt == nil {
		salt = zeroes
	}
	if ikm == nil {
		ikm = zeroes
	}
	out, err := hkdf.Extract(k, ikm, salt)
	if err != nil {
		panic(err)
	}
	return out
}

// derive is Derive-Secret (section 7.1).
func (k schedule) derive(secret []byte, label string, transcript []byte) []byte {
	h := k()
	h.Write(transcript)
	return k.expand(secret, label, h.Sum(nil), k().Size())
}

// extension is an extension of a ClientHello, and share a public value in one.
type (
	extension struct {
		typ  uint16
		data []byte
	}
	share struct {
		group uint16
		value []byte
	}
)

// hello is a ClientHello, right or wrong, with correct binders.
type hello struct {
	versions, suites, groups []uint16
	modes                    []byte
	shares                   []share
	psks                     []auth.TLSPSK
	before, after            []extension // pre_shared_key
	binders                  int         // one for each PSK if 0, none if -1
	spoil                    byte        // xor of the binders
}

func vector16(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

func vector8(b []byte) []byte { return append([]byte{byte(len(b))}, b...) }

func numbers(list []uint16) (b []byte) {
	for _, v := range list {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// message makes the message. earlier is the transcript before it.
func (h *hello) message(earlier []byte) []byte {
	var ext []byte
	add := func(typ uint16, data []byte) {
		ext = append(binary.BigEndian.AppendUint16(ext, typ), vector16(data)...)
	}
	if len(h.versions) > 0 {
		add(extensionVersions, vector8(numbers(h.versions)))
	}
	add(extensionGroups, vector16(numbers(h.groups)))
	var shares []byte
	for _, s := range h.shares {
		shares = append(binary.BigEndian.AppendUint16(shares, s.group),
			append(shares[len(shares):], vector16(s.value)...)...)
	}
	add(extensionKeyShare, vector16(shares))
	if h.modes != nil {
		add(extensionModes, vector8(h.modes))
	}
	for _, e := range h.before {
		add(e.typ, e.data)
	}
	var identities []byte
	for _, p := range h.psks {
		identities = append(identities, vector16([]byte(p.Identity))...)
		identities = append(identities, 0, 0, 0, 0) // age
	}
	var binders [][]byte
	size := 0
	for i := range h.psks {
		if h.binders == 0 || i < h.binders {
			binders = append(binders, make([]byte, h.psks[i].Hash.Size()))
		}
	}
	for len(binders) < h.binders {
		binders = append(binders, make([]byte, 32))
	}
	for _, b := range binders {
		size += 1 + len(b)
	}
	if len(h.psks) > 0 {
		add(extensionPreSharedKey, append(vector16(identities), vector16(make([]byte, size))...))
	}
	bound := 0 // bytes of the binders and their length
	for _, e := range h.after {
		add(e.typ, e.data)
		bound += 4 + len(e.data)
	}
	body := append([]byte{3, 3}, make([]byte, 32)...) // version, random
	_, _ = rand.Read(body[2:])
	body = append(body, 0) // session ID
	body = append(append(body, vector16(numbers(h.suites))...), 1, 0)
	body = append(body, vector16(ext)...)
	m := append([]byte{messageClientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	at := len(m) - bound - size
	for i, b := range binders {
		m[at] = byte(len(b))
		if i < len(h.psks) {
			p := h.psks[i]
			k := newSchedule(p.Hash)
			key := k.expand(k.extract(nil, p.Secret), "ext binder", k().Sum(nil), k().Size())
			b = k.finished(key, append(bytes.Clone(earlier), m[:len(m)-bound-size-2]...))
			b[len(b)-1] ^= h.spoil
		}
		at += 1 + copy(m[at+1:], b)
	}
	return m
}

// rawHalf seals or opens records with Go's AES-GCM.
type rawHalf struct {
	aead cipher.AEAD
	iv   []byte
	seq  uint64
}

func newRawHalf(k schedule, secret []byte) *rawHalf {
	size := 16
	if k().Size() == 48 {
		size = 32
	}
	block, err := aes.NewCipher(k.expand(secret, "key", nil, size))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return &rawHalf{aead: aead, iv: k.expand(secret, "iv", nil, 12)}
}

func (h *rawHalf) nonce() []byte {
	n := bytes.Clone(h.iv)
	for i, b := range binary.BigEndian.AppendUint64(nil, h.seq) {
		n[4+i] ^= b
	}
	h.seq++
	return n
}

func (h *rawHalf) seal(typ byte, content []byte) []byte {
	n := len(content) + 1 + tagSize
	header := []byte{typeApplication, 3, 3, byte(n >> 8), byte(n)}
	return h.aead.Seal(header, h.nonce(), append(bytes.Clone(content), typ), header)
}

// open returns nil if the record is not sealed with this key. Later records then fail as well.
func (h *rawHalf) open(record []byte) []byte {
	b, err := h.aead.Open(nil, h.nonce(), record[recordHeader:], record[:recordHeader])
	if err != nil {
		h.seq--
		return nil
	}
	return b
}

func plainRecord(typ byte, content []byte) []byte {
	return append([]byte{typ, 3, 3}, vector16(content)...)
}

// rawClient is a client with its own key schedule that can send any bytes.
type rawClient struct {
	psk        auth.TLSPSK
	k          schedule
	private    *ecdh.PrivateKey
	p256       *ecdh.PrivateKey
	transcript []byte
	retried    bool
	out        *rawHalf // handshake keys, once there is a ServerHello
	in, inApp  *rawHalf
	outApp     *rawHalf
	finished   []byte // the correct message
	secret     []byte // of the handshake
	client     []byte
	alert      int // received, -1: none
}

func newRawClient(p auth.TLSPSK) *rawClient {
	x, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	y, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return &rawClient{psk: p, k: newSchedule(p.Hash), private: x, p256: y, alert: -1}
}

// hello returns the ClientHello of a good client.
func (c *rawClient) hello() *hello {
	suite := uint16(suiteSHA256)
	if c.psk.Hash == auth.SHA384 {
		suite = suiteSHA384
	}
	return &hello{
		versions: []uint16{0x0304}, suites: []uint16{suite},
		groups: []uint16{groupX25519, groupP256}, modes: []byte{modePSKWithDHE},
		shares: []share{{groupX25519, c.private.PublicKey().Bytes()}},
		psks:   []auth.TLSPSK{c.psk},
	}
}

// send adds a ClientHello to the transcript and returns its record.
func (c *rawClient) send(h *hello) []byte {
	m := h.message(c.transcript)
	c.transcript = append(c.transcript, m...)
	return plainRecord(typeHandshake, m)
}

// receive reads the flight of a server: ServerHello or HelloRetryRequest, and sealed records.
func (c *rawClient) receive(b []byte) error {
	for len(b) > 0 {
		if len(b) < recordHeader || len(b) < recordHeader+int(binary.BigEndian.Uint16(b[3:])) {
			return fmt.Errorf("half a record: % x", b)
		}
		n := recordHeader + int(binary.BigEndian.Uint16(b[3:]))
		record := b[:n]
		b = b[n:]
		switch content := record[recordHeader:]; record[0] {
		case typeAlert:
			c.alert = int(content[1])
		case typeHandshake:
			if err := c.serverHello(content); err != nil {
				return err
			}
		case typeApplication:
			if err := c.sealed(record); err != nil {
				return err
			}
		case typeChangeCipherSpec:
		default:
			return fmt.Errorf("a record of type %d", record[0])
		}
	}
	return nil
}

func (c *rawClient) serverHello(m []byte) error {
	if m[0] != messageServerHello || c.out != nil {
		return fmt.Errorf("a message of type %d", m[0])
	}
	if bytes.Equal(m[6:38], retryRandom[:]) { // section 4.4.1
		h := c.k()
		h.Write(c.transcript)
		c.transcript = append([]byte{254, 0, 0, byte(h.Size())}, h.Sum(nil)...)
		c.transcript = append(c.transcript, m...)
		c.retried = true
		return nil
	}
	c.transcript = append(c.transcript, m...)
	f := fields(m[4+2+32:])
	f.vector(1) // session ID
	f.skip(3)   // cipher suite, compression
	var common []byte
	for ext := f.vector(2); len(ext) > 0; {
		typ, data := ext.number(2), ext.vector(2)
		if typ != extensionKeyShare {
			continue
		}
		key := c.private
		if data.number(2) == groupP256 {
			key = c.p256
		}
		public, err := key.Curve().NewPublicKey(data.vector(2))
		if err != nil {
			return err
		}
		if common, err = key.ECDH(public); err != nil {
			return err
		}
	}
	early := c.k.extract(nil, c.psk.Secret)
	c.secret = c.k.extract(c.k.derive(early, "derived", nil), common)
	c.client = c.k.derive(c.secret, "c hs traffic", c.transcript)
	c.out = newRawHalf(c.k, c.client)
	c.in = newRawHalf(c.k, c.k.derive(c.secret, "s hs traffic", c.transcript))
	return nil
}

// sealed reads a record with the keys of the handshake, or after Finished.
func (c *rawClient) sealed(record []byte) error {
	if c.in == nil {
		return fmt.Errorf("sealed before ServerHello: % x", record)
	}
	content := c.in.open(record)
	if content == nil && c.inApp != nil {
		content = c.inApp.open(record)
	}
	if content == nil {
		return fmt.Errorf("a record that cannot be opened: % x", record)
	}
	typ, content := content[len(content)-1], content[:len(content)-1]
	if typ == typeAlert {
		c.alert = int(content[1])
		return nil
	}
	c.transcript = append(c.transcript, content...)
	for m := content; len(m) >= 4; m = m[min(len(m), 4+int(binary.BigEndian.Uint32(m)&0xFFFFFF)):] {
		if m[0] != messageFinished {
			continue
		}
		main := c.k.extract(c.k.derive(c.secret, "derived", nil), nil)
		c.outApp = newRawHalf(c.k, c.k.derive(main, "c ap traffic", c.transcript))
		c.inApp = newRawHalf(c.k, c.k.derive(main, "s ap traffic", c.transcript))
		verify := c.k.finished(c.client, c.transcript)
		c.finished = append([]byte{messageFinished, 0, 0, byte(len(verify))}, verify...)
	}
	return nil
}

// start exchanges hellos between a client and a server, with a retry if the server requests it, up
// to the Finished of the client.
func (c *rawClient) start(s *Server, first, second *hello) (err error) {
	out, _, stepErr := s.Step(c.send(first))
	if err := c.receive(out); err != nil {
		return err
	}
	if stepErr == nil && c.retried {
		out, _, stepErr = s.Step(c.send(second))
		if err := c.receive(out); err != nil {
			return err
		}
	}
	return stepErr
}

// TestRawClient: the client of the tests below completes a handshake, with both hashes, also after
// a HelloRetryRequest.
func TestRawClient(t *testing.T) {
	needTLS(t)
	for _, h := range []auth.Hash{auth.SHA256, auth.SHA384} {
		for _, retry := range []bool{false, true} {
			psks := testPSKs(t, h)
			s := NewServer(lookup(psks))
			c := newRawClient(psks[0])
			first, second := c.hello(), c.hello()
			if retry {
				first.shares = nil
			}
			if err := c.start(s, first, second); err != nil || c.retried != retry {
				t.Fatalf("%v, retry %v, %v: %v", h, retry, c.retried, err)
			}
			out, conn, err := s.Step(c.out.seal(typeHandshake, c.finished))
			testutil.MustTrue(t, err == nil && conn != nil && len(out) == 0,
				"%v, retry %v: %v, % x", h, retry, err, out)
			testutil.True(t, slices.Equal(conn.in.secret, c.secretOf(t, "c ap traffic")),
				"%v: client and server have different keys", h)
			conn.Close()
			s.Free()
		}
	}
}

// secretOf derives a traffic secret from the transcript up to the Finished of the server.
func (c *rawClient) secretOf(t *testing.T, label string) []byte {
	t.Helper()
	main := c.k.extract(c.k.derive(c.secret, "derived", nil), nil)
	return c.k.derive(main, label, c.transcript)
}
