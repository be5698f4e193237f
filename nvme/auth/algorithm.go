package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"slices"
)

// Hash is a hash function, as numbered in messages and keys (Base section 8.3.4.5).
type Hash uint8

// The hash functions. NoHash stands for a key without transformation.
const (
	NoHash Hash = iota
	SHA256
	SHA384
	SHA512
)

// hashes has the functions by Hash.
var hashes = [...]struct {
	name string
	new  func() hash.Hash
	size int
}{
	SHA256: {"sha256", sha256.New, sha256.Size},
	SHA384: {"sha384", sha512.New384, sha512.Size384},
	SHA512: {"sha512", sha512.New, sha512.Size},
}

func (h Hash) known() bool { return h > NoHash && int(h) < len(hashes) }

// Size is the length of a hash in bytes, 0 if h is unknown.
func (h Hash) Size() int {
	if !h.known() {
		return 0
	}
	return hashes[h].size
}

// String is "sha256".
func (h Hash) String() string {
	if !h.known() {
		return fmt.Sprintf("hash %d", uint8(h))
	}
	return hashes[h].name
}

func (h Hash) sum(data []byte) []byte {
	f := hashes[h].new()
	f.Write(data)
	return f.Sum(nil)
}

// hmac returns the HMAC of the parts in order.
func (h Hash) hmac(key []byte, parts ...[]byte) []byte {
	f := hmac.New(hashes[h].new, key)
	f.Write(slices.Concat(parts...))
	return f.Sum(nil)
}

// Group is a Diffie-Hellman group, as numbered in messages (Base section 8.3.4.5).
type Group uint8

// The groups. With GroupNull only the challenges are exchanged.
const (
	GroupNull Group = iota
	FFDHE2048
	FFDHE3072
	FFDHE4096
	FFDHE6144
	FFDHE8192
)

func (g Group) known() bool { return int(g) < len(groups) }

// String is "ffdhe2048" or "null".
func (g Group) String() string {
	if !g.known() {
		return fmt.Sprintf("group %d", uint8(g))
	}
	return groups[g].name
}

// AllHashes and AllGroups are the supported ones, in the order of their numbers.
var (
	AllHashes = []Hash{SHA256, SHA384, SHA512}
	AllGroups = []Group{GroupNull, FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192}
)

// DefaultGroups are the groups of a Policy without Groups, in order of preference. The proof does
// not depend on the group, so the cheapest comes first. Larger groups are left out, because a power
// takes ten times as long: peers that offer nothing else would keep the controller busy. GroupNull
// is left out, because an attacker that has recorded an exchange could try keys offline.
var DefaultGroups = []Group{FFDHE2048, FFDHE3072}
