package auth

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
)

// Key is a secret of DH-HMAC-CHAP. It does not change, and prints as "hidden key".
type Key struct {
	secret []byte
	hash   Hash // of the transformation
}

const (
	keyPrefix = "DHHC-1:"
	crcSize   = 4
)

// keySizes are the lengths that a secret may have in bytes (Base section 8.3.4.5).
var keySizes = []int{32, 48, 64}

// ParseKey reads a key in the interchange format of secrets (Base section 8.3.4.5):
// "DHHC-1:tt:base64:", where tt is the hash of the transformation, 00 for none, and the base64 has
// the secret and its CRC-32. An error does not repeat any of the text.
func ParseKey(text string) (*Key, error) {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return nil, errors.New("a key begins with " + keyPrefix)
	}
	tt, encoded, _ := strings.Cut(rest, ":")
	if encoded, ok = strings.CutSuffix(encoded, ":"); !ok {
		return nil, errors.New("the key does not end with a colon, so part of it is missing")
	}
	hash := Hash(slices.Index([]string{"00", "01", "02", "03"}, tt))
	if hash > SHA512 {
		return nil, errors.New("the transformation of the key is none of 00, 01, 02 and 03")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(encoded)
	switch size := len(raw) - crcSize; {
	case err != nil || strings.ContainsAny(encoded, "\r\n"): // which the decoder skips
		return nil, errors.New("the middle of the key is no base64")
	case !slices.Contains(keySizes, size):
		return nil, fmt.Errorf("the secret has %d bytes, not 32, 48 or 64", max(size, 0))
	case binary.LittleEndian.Uint32(raw[size:]) != crc32.ChecksumIEEE(raw[:size]):
		return nil, errors.New("the checksum of the key is wrong: it was not copied correctly")
	default:
		return &Key{raw[:size:size], hash}, nil
	}
}

// NewKey makes a random key of 32, 48 or 64 bytes.
func NewKey(size int, hash Hash) (*Key, error) {
	if !slices.Contains(keySizes, size) || hash > SHA512 {
		return nil, fmt.Errorf("a key of %d bytes with %v: must be 32, 48 or 64 bytes and one of "+
			"the hash functions", size, hash)
	}
	k := &Key{make([]byte, size), hash}
	rand.Read(k.secret) // never fails
	return k, nil
}

// Reveal returns the key in the interchange format. It is secret.
func (k *Key) Reveal() string {
	raw := binary.LittleEndian.AppendUint32(slices.Clone(k.secret), crc32.ChecksumIEEE(k.secret))
	defer clear(raw)
	return fmt.Sprintf("%s%02x:%s:", keyPrefix, uint8(k.hash),
		base64.StdEncoding.EncodeToString(raw))
}

// Size is the length of the secret in bytes.
func (k *Key) Size() int { return len(k.secret) }

// Transformation is the hash of the transformation, or NoHash.
func (k *Key) Transformation() Hash { return k.hash }

// Equal says whether two keys have the same secret, in constant time.
func (k *Key) Equal(o *Key) bool { return subtle.ConstantTimeCompare(k.secret, o.secret) == 1 }

// String does not tell the key.
func (k Key) String() string { return "hidden key" }

// Format implements fmt.Formatter: no verb tells the key.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// transformed returns what the side with this NQN computes with (Base section 8.3.4.5). The
// caller wipes it.
func (k *Key) transformed(nqn string) []byte {
	if k.hash == NoHash {
		return slices.Clone(k.secret)
	}
	return k.hash.hmac(k.secret, []byte(nqn), []byte("NVMe-over-Fabrics"))
}
