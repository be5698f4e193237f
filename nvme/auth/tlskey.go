package auth

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// TLSKey is a configured PSK. The PSKs of TLS are derived from it (TCP section 3.6.1.3). It is
// immutable, and prints as "hidden key".
type TLSKey struct {
	secret []byte
	hash   Hash // for deriving the retained PSK
}

const tlsKeyPrefix = "NVMeTLSkey-1:"

// tlsHash returns the hash of the cipher suite for a secret of this length: SHA256 for
// TLS_AES_128_GCM_SHA256, SHA384 for TLS_AES_256_GCM_SHA384, otherwise NoHash.
func tlsHash(size int) Hash {
	switch size {
	case SHA256.Size():
		return SHA256
	case SHA384.Size():
		return SHA384
	}
	return NoHash
}

// IsTLSKey reports whether text has the prefix of a key of TLS.
func IsTLSKey(text string) bool { return strings.HasPrefix(text, tlsKeyPrefix) }

// ParseTLSKey parses a key in the PSK interchange format (TCP section 3.6.1.5):
// "NVMeTLSkey-1:hh:base64:", where hh is the hash for deriving the retained PSK, 00 for none, and
// the base64 text contains the secret and its CRC-32. An error does not repeat any of the text.
func ParseTLSKey(text string) (*TLSKey, error) {
	hash, secret, err := parseInterchange(text, tlsKeyPrefix,
		[]int{SHA256.Size(), SHA384.Size()}, []string{"00", "01", "02"})
	if err != nil {
		return nil, err
	}
	return newTLSKey(secret, hash)
}

// NewTLSKey makes a random key for a hash: 32 bytes for SHA256 and NoHash, 48 for SHA384.
func NewTLSKey(hash Hash) (*TLSKey, error) {
	size := SHA256.Size()
	if hash != NoHash {
		size = hash.Size()
	}
	secret := make([]byte, size)
	rand.Read(secret) // never fails
	return newTLSKey(secret, hash)
}

func newTLSKey(secret []byte, hash Hash) (*TLSKey, error) {
	switch want := tlsHash(len(secret)); {
	case want == NoHash:
		return nil, fmt.Errorf("the secret has %d bytes, not 32 or 48", len(secret))
	case hash != NoHash && hash != want:
		return nil, fmt.Errorf("a secret of %d bytes with %v: 32 bytes go with sha256 (01), "+
			"48 with sha384 (02)", len(secret), hash)
	default:
		return &TLSKey{secret, hash}, nil
	}
}

// Reveal returns the key in the interchange format. It is secret.
func (k *TLSKey) Reveal() string { return interchange(tlsKeyPrefix, k.hash, k.secret) }

// Size is the length of the secret in bytes.
func (k *TLSKey) Size() int { return len(k.secret) }

// Hash returns the hash for deriving the retained PSK, or NoHash.
func (k *TLSKey) Hash() Hash { return k.hash }

// Equal reports whether two keys have the same PSKs, in constant time.
func (k *TLSKey) Equal(o *TLSKey) bool {
	return k.hash == o.hash && subtle.ConstantTimeCompare(k.secret, o.secret) == 1
}

// String does not reveal the key.
func (k TLSKey) String() string { return "hidden key" }

// Format implements fmt.Formatter: no verb reveals the key.
func (k TLSKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// TLSPSK is a PSK ready for TLS. It prints as its identity.
type TLSPSK struct {
	Identity string
	Hash     Hash    // of the cipher suite: SHA256 or SHA384
	Compat   bool    // derived with the labels of libnvme before 1.16 (libnvme's compat functions)
	Secret   []byte  // Hash.Size() bytes; the owner wipes them
	Key      *TLSKey // it was derived from; nil if it was generated
}

// String does not reveal the secret.
func (p TLSPSK) String() string { return p.Identity }

// Format implements fmt.Formatter: no verb reveals the secret.
func (p TLSPSK) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(p.String())) }

// PSKs derives the PSKs that a host may present for a subsystem: identities of versions 1 and 0,
// each with the labels of RFC 8446 (section 7.1) and with the older labels of libnvme, which lack
// the lengths of label and context. So two PSKs usually have the same identity and different
// secrets. Only the binder of the handshake shows which of them the host has. Version 0 is missing
// if identity and label do not fit into 255 bytes. The caller wipes the secrets.
func (k *TLSKey) PSKs(hostNQN, subNQN string) ([]TLSPSK, error) {
	if err := checkNQNs(hostNQN, subNQN); err != nil {
		return nil, err
	}
	return k.derive(hostNQN, subNQN, 1, 0), nil
}

// derive derives the PSKs with identities of these versions.
func (k *TLSKey) derive(hostNQN, subNQN string, versions ...int) (psks []TLSPSK) {
	cipher := tlsHash(len(k.secret))
	secret := extract(cipher, k.secret)
	defer clear(secret)
	names := fmt.Sprintf("R%02d %s %s", cipher, hostNQN, subNQN)
	for _, compat := range []bool{false, true} {
		retained := expandLabel(cipher, secret, "HostNQN", hostNQN, compat)
		if k.hash == NoHash { // takes the same time
			copy(retained, k.secret)
		}
		digest := base64.StdEncoding.EncodeToString(cipher.hmac(retained,
			[]byte(hostNQN+" "+subNQN+" NVMe-over-Fabrics")))
		prk := extract(cipher, retained)
		for _, version := range versions {
			id := "NVMe1" + names + " " + digest
			context := fmt.Sprintf("%02d %s", cipher, digest)
			if version == 0 {
				if id = "NVMe0" + names; len(id) > maxContext {
					continue
				}
				context = id
			}
			psks = append(psks, TLSPSK{
				id, cipher, compat, expandLabel(cipher, prk, "nvme-tls-psk", context, compat), k,
			})
		}
		clear(retained)
		clear(prk)
	}
	return psks
}

// mostTLSKeys is the most keys of a host valid at a time, with an old one.
const mostTLSKeys = 2

// dummyKeys stand for missing keys of a host, by their hash.
var dummyKeys = [...]*TLSKey{SHA256: dummyKey(SHA256), SHA384: dummyKey(SHA384)}

func dummyKey(h Hash) *TLSKey {
	k, err := NewTLSKey(h)
	if err != nil {
		panic(err)
	}
	return k
}

// MostTLSPSKs is the most PSKs of a host with one identity: its keys with both labels.
const MostTLSPSKs = 2 * mostTLSKeys

// WithIdentity derives the PSKs with an identity from the keys of its host, at most two of them. It
// returns none if there are no such PSKs. It always derives as many as from two keys, so its time
// reveals nothing about the keys. id is the result of ParseTLSIdentity. The caller wipes the
// secrets.
func WithIdentity(identity string, id TLSIdentity, keys []*TLSKey) (psks []TLSPSK) {
	keys = slices.Clone(keys[:min(len(keys), mostTLSKeys)])
	keys = slices.DeleteFunc(keys, func(k *TLSKey) bool { return tlsHash(k.Size()) != id.Hash })
	for i := range mostTLSKeys {
		k := dummyKeys[id.Hash]
		if i < len(keys) {
			k = keys[i]
		}
		for _, p := range k.derive(id.HostNQN, id.SubNQN, id.Version) {
			if i < len(keys) && p.Identity == identity {
				psks = append(psks, p)
			} else {
				clear(p.Secret)
			}
		}
	}
	return psks
}

// maxContext is the longest context that its length field can describe (RFC 8446 section 7.1).
const maxContext = 255

// extract is HKDF-Extract with a salt of zeroes. The caller wipes the result.
func extract(h Hash, secret []byte) []byte {
	prk, err := hkdf.Extract(hashes[h].new, secret, nil)
	if err != nil { // only if FIPS 140 refuses the secret, which is long enough
		panic(err)
	}
	return prk
}

// expandLabel is HKDF-Expand-Label of the result of extract, to the length of the hash (RFC 8446
// section 7.1). compat selects the variant of libnvme on little-endian machines.
func expandLabel(h Hash, prk []byte, label, context string, compat bool) []byte {
	label = "tls13 " + label
	var info []byte
	if compat {
		info = binary.LittleEndian.AppendUint16(nil, uint16(h.Size()))
		info = append(append(info, label...), context...)
	} else {
		info = binary.BigEndian.AppendUint16(nil, uint16(h.Size()))
		info = append(append(info, byte(len(label))), label...)
		info = append(append(info, byte(len(context))), context...)
	}
	out, err := hkdf.Expand(hashes[h].new, prk, string(info), h.Size())
	if err != nil { // only for more than 255 hashes
		panic(err)
	}
	return out
}

// TLSIdentity is the content of a PSK identity (TCP section 3.6.1.3).
type TLSIdentity struct {
	Version         int // 0 or 1
	Hash            Hash
	HostNQN, SubNQN string
	Generated       bool // by secure channel concatenation
}

// maxNQN is the longest NQN in bytes (Base section 4.7).
const maxNQN = 223

// maxTLSIdentity is the longest identity in bytes. It has version 1: "NVMe1R02", three spaces, two
// NQNs, and the digest of SHA-384, 48 bytes in base64.
const maxTLSIdentity = 8 + 3 + 2*maxNQN + 64

// ParseTLSIdentity parses the identity that a host presents. Nothing is known of the host yet.
func ParseTLSIdentity(identity []byte) (id TLSIdentity, err error) {
	if len(identity) > maxTLSIdentity {
		return id, fmt.Errorf("a PSK identity of %d bytes is too long", len(identity))
	}
	fields := strings.Split(string(identity), " ")
	i := slices.Index([]string{
		"NVMe0R01", "NVMe0R02", "NVMe1R01", "NVMe1R02", "NVMe1G01", "NVMe1G02",
	}, fields[0])
	if i < 0 {
		return id, errors.New("the PSK identity begins with none of NVMe0R01, NVMe0R02, " +
			"NVMe1R01, NVMe1R02, NVMe1G01 and NVMe1G02")
	}
	id.Version, id.Hash, id.Generated = min(i/2, 1), SHA256+Hash(i%2), i/2 == 2
	if len(fields) != 3+id.Version {
		return id, fmt.Errorf("the PSK identity has %d fields, not %d", len(fields), 3+id.Version)
	}
	id.HostNQN, id.SubNQN = fields[1], fields[2]
	if err := checkNQNs(id.HostNQN, id.SubNQN); err != nil {
		return id, err
	}
	if id.Version == 1 {
		raw, err := decodeBase64(fields[3])
		if err != nil || len(raw) != id.Hash.Size() {
			return id, fmt.Errorf("the digest of the PSK identity is not base64 of %d bytes",
				id.Hash.Size())
		}
	}
	return id, nil
}

// checkNQNs returns an error for a name with a space, which ends fields of identities.
func checkNQNs(nqns ...string) error {
	for _, nqn := range nqns {
		if nqn == "" || len(nqn) > maxNQN {
			return fmt.Errorf("an NQN of %d bytes: must have 1 to %d", len(nqn), maxNQN)
		}
		bad := func(r rune) bool { return r <= ' ' || r == 0x7f || r == utf8.RuneError }
		if strings.ContainsFunc(nqn, bad) {
			return errors.New("an NQN has a space or a control character, or is not UTF-8")
		}
	}
	return nil
}
