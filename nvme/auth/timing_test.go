package auth

import (
	"bytes"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTiming: the time to compare keys and responses does not depend on the position of the first
// difference.
func TestTiming(t *testing.T) {
	const samples = 100_000
	// ends returns two copies of a secret, one changed in the first byte and one in the last.
	ends := func(size int, of []byte) (two [2][]byte) {
		for i, at := range []int{0, size - 1} {
			two[i] = slices.Clone(of)
			two[i][at] ^= 1
		}
		return two
	}
	key := testutil.Value(NewKey(64, NoHash))(t)
	testutil.Secret(t, key.Reveal())
	secrets := ends(64, key.secret)
	// The other key is always at the same place, because memory alignment matters.
	other := &Key{make([]byte, 64), NoHash}
	equal := 0
	t.Run("keys", func(t *testing.T) {
		testutil.SameTime(t, samples, func(class int) func() {
			copy(other.secret, secrets[class])
			return func() {
				for range 100 {
					if key.Equal(other) {
						equal++
					}
				}
			}
		})
	})
	t.Run("keys of TLS", func(t *testing.T) {
		key := testutil.Value(NewTLSKey(SHA384))(t)
		secrets, other := ends(48, key.secret), &TLSKey{make([]byte, 48), SHA384}
		testutil.SameTime(t, samples, func(class int) func() {
			copy(other.secret, secrets[class])
			return func() {
				for range 100 {
					if key.Equal(other) {
						equal++
					}
				}
			}
		})
	})
	t.Run("responses", func(t *testing.T) {
		p := &Policy{Keys: []*Key{key}, Groups: []Group{GroupNull}}
		testutil.SameTime(t, samples, func(class int) func() {
			c := NewController("nqn.host", "nqn.sub", NoConcatenation)
			h := &Host{HostNQN: "nqn.host", SubNQN: "nqn.sub", Key: key, Hashes: []Hash{SHA512}}
			c.Sent(h.Negotiate(1), p)
			m := testutil.Value(h.Challenged(bytes.Clone(c.Message())))(t)
			c.Read()
			m[headerSize+[]int{0, 63}[class]] ^= 1
			return func() { c.Sent(m, p) }
		})
	})
	t.Run("a comparison that leaks", func(t *testing.T) {
		testutil.DifferentTime(t, samples, func(class int) func() {
			copy(other.secret, secrets[class])
			return func() {
				for range 100 {
					for i := range key.secret {
						if other.secret[i] != key.secret[i] {
							break
						}
					}
				}
			}
		})
	})
	testutil.True(t, equal <= 0, "keys that differ are equal")
}
