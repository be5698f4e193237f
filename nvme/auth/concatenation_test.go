package auth

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestGenerate uses the vectors of Linux (drivers/nvme/common/tests/auth_kunit.c).
func TestGenerate(t *testing.T) {
	fill := func(n int, f func(i int) byte) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = f(i)
		}
		return b
	}
	for _, tc := range []struct {
		hash           Hash
		digest, secret string
	}{
		{
			SHA256, "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
			"3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
		},
		{
			SHA384, "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
			"2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d08" +
				"98fff15bb8b77119d2be0aac423e7590",
		},
	} {
		n := tc.hash.Size()
		x := exchange{
			hostNQN: "hostnqn", subNQN: "subsysnqn", hash: tc.hash,
			session: fill(n, func(i int) byte { return byte('A' + i) }),
		}
		p := x.generate(fill(n, func(i int) byte { return byte(i) }),
			fill(n, func(i int) byte { return byte(0xFF - i) }))
		testutil.True(t, strings.HasSuffix(p.Identity, " hostnqn subsysnqn "+tc.digest) &&
			strings.HasPrefix(p.Identity, "NVMe1G0") && p.Hash == tc.hash, "%v: identity %q",
			tc.hash, p.Identity)
		testutil.Equal(t, hex.EncodeToString(p.Secret), tc.secret, "%v", tc.hash)
	}
}

// TestConcatenation runs exchanges that generate a PSK, and some that must not.
func TestConcatenation(t *testing.T) {
	key, other := with(t, SHA256), mustKey(t, countingKey)
	for _, tc := range []struct {
		name         string
		asked, offer Concatenation
		both         bool
		change       func(h *Host, p *Policy)
		want         Reason
	}{
		{"new", NewPSK, NewPSK, false, nil, 0},
		{"replaced", ReplacePSK, ReplacePSK, false, nil, 0},
		{"with a key of the controller", NewPSK, NewPSK, true, nil, 0},
		{"offered, not asked for", NoConcatenation, NewPSK, true, nil, 0},
		{"not offered", NewPSK, NoConcatenation, false, nil, ConcatenationMismatch},
		{"nothing to replace", ReplacePSK, NewPSK, false, nil, ConcatenationMismatch},
		{"instead of a replacement", NewPSK, ReplacePSK, false, nil, ConcatenationMismatch},
		{"without another PSK, SC", 1, NewPSK, false, nil, ConcatenationMismatch},
		{"reserved", 4, NewPSK, false, nil, ConcatenationMismatch},
		{
			"wrong key", NewPSK, NewPSK, false, func(h *Host, _ *Policy) { h.Key = other },
			AuthenticationFailed,
		},
		{"only NULL", NewPSK, NewPSK, false, func(h *Host, p *Policy) {
			h.Groups, p.Groups = AllGroups[:1], AllGroups
		}, GroupNotUsable},
		{"only SHA-512", NewPSK, NewPSK, false, func(h *Host, _ *Policy) {
			h.Hashes = []Hash{SHA512}
		}, HashNotUsable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &Host{HostNQN: hostNQN, SubNQN: subNQN, Key: key, Concatenation: tc.asked}
			p := &Policy{Keys: []*Key{key}, Hashes: []Hash{SHA512, SHA384, SHA256}}
			if tc.both {
				h.ControllerKey, p.ControllerKey = other, other
			}
			if tc.change != nil {
				tc.change(h, p)
			}
			c := NewController(hostNQN, subNQN, tc.offer)
			err := exchangeAll(h, c, p)
			psk, _ := c.TakePSK()
			if tc.want != 0 {
				if err == nil || c.Reason() != tc.want || psk != nil || c.psk != nil {
					t.Fatalf("host: %v, controller: %v, PSK: %v", err, c.Reason(), psk)
				}
				return
			}
			if err != nil || c.State() != Authenticated {
				t.Fatal(err, c.State())
			}
			if tc.asked == NoConcatenation {
				testutil.MustTrue(t, psk == nil && h.Generated == nil,
					"a PSK that nobody asked for")
				return
			}
			testutil.MustTrue(t, psk != nil && psk.Identity == h.Generated.Identity &&
				psk.Hash == SHA384 && bytes.Equal(psk.Secret, h.Generated.Secret),
				"controller %v, host %v", psk, h.Generated)
			if psk, _ := c.TakePSK(); psk != nil {
				t.Error("the PSK is there twice")
			}
			testutil.Must(t, exchangeAll(h, c, p))
			if again, _ := c.TakePSK(); again == nil || again.Identity == psk.Identity {
				t.Error("another exchange has given the same PSK")
			}
		})
	}
}

// TestConcatenationWithoutChallenge uses a reply without C2: there is no PSK, and the exchange
// fails (Base section 8.3.4.5).
func TestConcatenationWithoutChallenge(t *testing.T) {
	h := &Host{HostNQN: hostNQN, SubNQN: subNQN, Key: with(t, SHA256), Concatenation: NewPSK}
	c := NewController(hostNQN, subNQN, NewPSK)
	p := &Policy{Keys: []*Key{h.Key}}
	c.Sent(h.Negotiate(1), p)
	m := testutil.Value(h.Challenged(c.Message()))(t)
	c.Read()
	m[8] = 0 // CVALID
	c.Sent(m, p)
	psk, _ := c.TakePSK()
	if c.State() != Failed || c.Reason() != AuthenticationFailed || psk != nil {
		t.Error(c.State(), c.Reason())
	}
}
