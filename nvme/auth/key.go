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

// Key is a secret of DH-HMAC-CHAP. It is immutable, and prints as "hidden key".
type Key struct {
	secret []byte
	hash   Hash // of the transformation
}

const (
	keyPrefix = "DHHC-1:"
	crcSize   = 4
)

// keySizes are the allowed lengths of a secret in bytes (Base section 8.3.4.5).
var keySizes = []int{32, 48, 64}

// ParseKey parses a key in the interchange format of secrets (Base section 8.3.4.5):
// "DHHC-1:tt:base64:", where tt is the hash of the transformation, 00 for none, and the base64 text
// contains the secret and its CRC-32. An error does not repeat any of the text.
func ParseKey(text string) (*Key, error) {
	hash, secret, err := parseInterchange(text, keyPrefix, keySizes,
		[]string{"00", "01", "02", "03"})
	if err != nil {
		return nil, err
	}
	return &Key{secret, hash}, nil
}

// parseInterchange parses prefix and "tt:base64:", where tt is one of tts and stands for its index,
// and the base64 text contains a secret of one of these sizes and its CRC-32.
func parseInterchange(text, prefix string, sizes []int, tts []string) (Hash, []byte, error) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return 0, nil, errors.New("a key begins with " + prefix)
	}
	tt, encoded, _ := strings.Cut(rest, ":")
	if encoded, ok = strings.CutSuffix(encoded, ":"); !ok {
		return 0, nil, errors.New("the key does not end with a colon, so part of it is missing")
	}
	hash := slices.Index(tts, tt)
	if hash < 0 {
		return 0, nil, errors.New("the transformation of the key is none of " +
			strings.Join(tts, ", "))
	}
	raw, err := decodeBase64(encoded)
	switch size := len(raw) - crcSize; {
	case err != nil:
		return 0, nil, errors.New("the middle of the key is not base64")
	case !slices.Contains(sizes, size):
		return 0, nil, fmt.Errorf("the secret has %d bytes, must be one of %s", max(size, 0),
			strings.Trim(fmt.Sprint(sizes), "[]"))
	case binary.LittleEndian.Uint32(raw[size:]) != crc32.ChecksumIEEE(raw[:size]):
		return 0, nil, errors.New("the checksum of the key is wrong: it was not copied correctly")
	default:
		return Hash(hash), raw[:size:size], nil
	}
}

// decodeBase64 is strict. It also rejects line ends, which the decoder skips.
func decodeBase64(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, errors.New("line breaks in base64")
	}
	return base64.StdEncoding.Strict().DecodeString(text)
}

// IsKey reports whether text has the prefix of a key of DH-HMAC-CHAP or of TLS.
func IsKey(text string) bool {
	return strings.HasPrefix(text, keyPrefix) || IsTLSKey(text)
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
func (k *Key) Reveal() string { return interchange(keyPrefix, k.hash, k.secret) }

// interchange formats a key; parseInterchange parses it.
func interchange(prefix string, hash Hash, secret []byte) string {
	raw := binary.LittleEndian.AppendUint32(slices.Clone(secret), crc32.ChecksumIEEE(secret))
	defer clear(raw)
	return fmt.Sprintf("%s%02x:%s:", prefix, uint8(hash), base64.StdEncoding.EncodeToString(raw))
}

// Size is the length of the secret in bytes.
func (k *Key) Size() int { return len(k.secret) }

// Transformation returns the hash of the transformation, or NoHash.
func (k *Key) Transformation() Hash { return k.hash }

// Equal reports whether two keys have the same secret, in constant time.
func (k *Key) Equal(o *Key) bool { return subtle.ConstantTimeCompare(k.secret, o.secret) == 1 }

// String does not reveal the key.
func (k Key) String() string { return "hidden key" }

// Format implements fmt.Formatter: no verb reveals the key.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// transformed returns the key that the side with this NQN uses for computations (Base section
// 8.3.4.5). The caller wipes it.
func (k *Key) transformed(nqn string) []byte {
	if k.hash == NoHash {
		return slices.Clone(k.secret)
	}
	return k.hash.hmac(k.secret, []byte(nqn), []byte("NVMe-over-Fabrics"))
}
