package tls

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"hash"

	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Numbers of RFC 8446.
const (
	typeAlert       = 21 // section 5.1
	typeHandshake   = 22
	typeApplication = 23

	messageClientHello      = 1 // section 4
	messageNewSessionTicket = 4
	messageKeyUpdate        = 24

	extensionPreSharedKey = 41 // section 4.2

	alertCloseNotify       = 0 // section 6
	alertUnexpectedMessage = 10
	alertBadRecordMAC      = 20
	alertRecordOverflow    = 22
	alertIllegalParameter  = 47
	alertDecodeError       = 50
	alertDecryptError      = 51
	alertInternalError     = 80
	alertUserCanceled      = 90
	levelWarning           = 1
	levelFatal             = 2

	recordHeader = 5 // bytes
	tagSize      = 16
	maxContent   = 1 << 14
	maxRecord    = recordHeader + maxContent + 256
)

// maxHello is the longest ClientHello with record headers. Linux hosts send less than 1 KiB.
const maxHello = 16 << 10

// maxOffered is the most PSKs of a ClientHello that are checked. Linux hosts offer one.
const maxOffered = 4

// clientHello is the parsed part of the message of a client.
type clientHello struct {
	message []byte
	psks    []offeredPSK
	bound   int // bytes of message that the binders cover (section 4.2.11.2)
}

type offeredPSK struct{ identity, binder []byte }

// IsTLS reports whether a connection begins with a handshake record, as no PDU does.
func IsTLS(b []byte) bool { return len(b) > 1 && b[0] == typeHandshake && b[1] == 3 }

var errIncomplete = errors.New("the ClientHello is not complete")

// errMalformed leaves the alert to OpenSSL.
var errMalformed = errors.New("no ClientHello with a PSK")

// errBinders: OpenSSL checks only the binder of the PSK that it takes.
var errBinders = errors.New("the ClientHello has different numbers of PSK identities and binders")

// parseHello reads the ClientHello at the start of a stream of records.
func parseHello(stream []byte) (h clientHello, err error) {
	for len(h.message) < 4 || len(h.message) < h.size() {
		if len(stream) < recordHeader {
			return h, errIncomplete
		}
		n := int(binary.BigEndian.Uint16(stream[3:]))
		if !IsTLS(stream) || n == 0 || n > maxContent {
			return h, errMalformed
		}
		if len(stream) < recordHeader+n {
			return h, errIncomplete
		}
		h.message = append(h.message, stream[recordHeader:recordHeader+n]...)
		stream = stream[recordHeader+n:]
	}
	if h.message[0] != messageClientHello || len(h.message) != h.size() {
		return h, errMalformed
	}
	err = h.parse()
	return h, err
}

// size is the length of the message, with its header.
func (h *clientHello) size() int { return 4 + int(binary.BigEndian.Uint32(h.message)&0xFFFFFF) }

// parse finds the PSKs. It returns errMalformed if there are none, or if the message is malformed.
func (h *clientHello) parse() error {
	m := fields(h.message[4:])
	m.skip(2 + 32) // version, random
	m.vector(1)    // session ID
	m.vector(2)    // cipher suites
	m.vector(1)    // compression methods
	extensions := m.vector(2)
	for len(extensions) > 0 {
		typ := extensions.number(2)
		data := extensions.vector(2)
		if typ != extensionPreSharedKey {
			continue
		}
		if len(extensions) > 0 || len(m) > 0 { // it is the last one (section 4.2.11)
			return errMalformed
		}
		identities, all := data.vector(2), len(data)
		binders := data.vector(2)
		h.bound = len(h.message) - all
		for len(identities) > 0 && len(binders) > 0 {
			o := offeredPSK{identities.vector(2), binders.vector(1)}
			identities.skip(4) // age
			if len(h.psks) < maxOffered {
				h.psks = append(h.psks, o)
			}
		}
		switch {
		case len(identities) > 0 || len(binders) > 0: // "one for each" (section 4.2.11)
			return errBinders
		case len(h.psks) > 0 && len(data) == 0:
			return nil
		}
	}
	return errMalformed
}

// fields reads vectors (section 3.4). Missing bytes read as nothing.
type fields []byte

func (f *fields) skip(n int) { *f = (*f)[min(n, len(*f)):] }

func (f *fields) number(n int) (v int) {
	for _, b := range (*f)[:min(n, len(*f))] {
		v = v<<8 | int(b)
	}
	f.skip(n)
	return v
}

// vector reads a vector with a length of n bytes.
func (f *fields) vector(n int) fields {
	size := min(f.number(n), len(*f))
	v := (*f)[:size:size]
	f.skip(size)
	return v
}

// PSK is the PSK of a client.
type PSK struct {
	auth.TLSPSK
	auth.TLSIdentity
}

// Cipher is the cipher suite for the PSK.
func (p *PSK) Cipher() string {
	if p.TLSPSK.Hash == auth.SHA384 {
		return "TLS_AES_256_GCM_SHA384"
	}
	return "TLS_AES_128_GCM_SHA256"
}

// Reasons for a missing PSK.
var (
	ErrUnknown  = errors.New("no host has a key with the PSK identity of the client")
	ErrWrongKey = errors.New("the client has another key with the same PSK identity")
)

// choose finds a PSK with a correct binder. PSKs with the same identity may have different secrets:
// the binder distinguishes them. For any result of psks the same number is tried, so the time does
// not show which hosts have a key. psks has to take the same time for all identities, too.
func (h *clientHello) choose(psks func(identity []byte) []auth.TLSPSK) (p PSK, err error) {
	err = ErrUnknown
	for _, o := range h.psks {
		id, bad := auth.ParseTLSIdentity(o.identity)
		if bad != nil {
			continue
		}
		p.TLSIdentity = id
		known := psks(o.identity)
		if len(known) > 0 {
			err = ErrWrongKey
		}
		for len(known) < auth.MostTLSPSKs {
			known = append(known, noPSK(id.Hash))
		}
		for _, s := range known {
			if h.bindsTo(s, o.binder) && p.Secret == nil && s.Identity == string(o.identity) {
				p.TLSPSK = s
			} else {
				clear(s.Secret)
			}
		}
		if p.Secret != nil {
			return p, nil
		}
	}
	return p, err
}

// noPSK returns a PSK that no client has.
func noPSK(h auth.Hash) auth.TLSPSK {
	p := auth.TLSPSK{Hash: h, Secret: make([]byte, h.Size())}
	rand.Read(p.Secret) // never fails
	return p
}

// bindsTo reports whether a binder was made with the secret (section 4.2.11.2).
func (h *clientHello) bindsTo(s auth.TLSPSK, binder []byte) bool {
	k := newSchedule(s.Hash)
	early, err := hkdf.Extract(k, s.Secret, make([]byte, k().Size()))
	if err != nil {
		return false
	}
	defer clear(early)
	key := k.expand(early, "ext binder", k().Sum(nil), k().Size())
	defer clear(key)
	return hmac.Equal(binder, k.finished(key, h.message[:h.bound]))
}

// schedule is the key schedule with a hash function (section 7.1).
type schedule func() hash.Hash

func newSchedule(h auth.Hash) schedule {
	if h == auth.SHA384 {
		return sha512.New384
	}
	return sha256.New
}

// expand is HKDF-Expand-Label.
func (k schedule) expand(secret []byte, label string, context []byte, n int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(append(info, byte(len("tls13 "+label))), "tls13 "+label...)
	info = append(append(info, byte(len(context))), context...)
	out, err := hkdf.Expand(k, secret, string(info), n)
	if err != nil { // only for more than 255 hashes
		panic(err)
	}
	return out
}

// finished returns the verification of a transcript (section 4.4.4).
func (k schedule) finished(base, transcript []byte) []byte {
	key := k.expand(base, "finished", nil, k().Size())
	defer clear(key)
	t := k()
	t.Write(transcript)
	m := hmac.New(k, key)
	m.Write(t.Sum(nil))
	return m.Sum(nil)
}
