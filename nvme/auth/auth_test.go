package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const (
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:2cb32d3e-32f6-4a7b-b5a5-36a8a2a9d5e1"
	subNQN  = "nqn.2026-11.io.nvmf-target:disk0"

	// exampleKey is the example of the specification, also found in libnvme ("the example secret
	// from the spec").
	exampleKey = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	// countingKey has the bytes 0 to 31; Python's zlib has computed the checksum.
	countingKey = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
)

func mustKey(t testing.TB, text string) *Key {
	t.Helper()
	k := testutil.Value(ParseKey(text))(t)
	return k
}

// with returns the example key with another transformation.
func with(t testing.TB, h Hash) *Key {
	return mustKey(t, strings.Replace(exampleKey, ":00:", fmt.Sprintf(":%02d:", h), 1))
}

// TestPrimes compares the primes with the output of OpenSSL 3.0 for these groups.
func TestPrimes(t *testing.T) {
	sums := map[Group]string{
		FFDHE2048: "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
		FFDHE3072: "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
		FFDHE4096: "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
		FFDHE6144: "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
		FFDHE8192: "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
	}
	for g, sum := range sums {
		m := groups[g].modulus()
		p := m.Nat().Bytes(m)
		if got := fmt.Sprintf("%x", sha256.Sum256(p)); got != sum || len(p) != g.valueSize() {
			t.Errorf("%v: the SHA-256 of p is %s, not %s", g, got, sum)
		}
		t.Run(fmt.Sprintf("%v is a safe prime", g), func(t *testing.T) {
			if g > FFDHE2048 {
				testutil.Soak(t, "it takes seconds")
			}
			n := new(big.Int).SetBytes(p)
			testutil.True(t, n.ProbablyPrime(0) && new(big.Int).Rsh(n, 1).ProbablyPrime(0),
				"p or (p-1)/2 is not a prime")
		})
	}
}

// TestAgreement compares with math/big, and checks that degenerate public values are refused.
func TestAgreement(t *testing.T) {
	for _, g := range AllGroups[1:] {
		m := groups[g].modulus()
		p := new(big.Int).SetBytes(m.Nat().Bytes(m))
		x, y := g.newExponent(), g.newExponent()
		a, b := g.public(x), g.public(y)
		s := testutil.Value(g.secret(x, b))(t)
		o, err := g.secret(y, a)
		testutil.True(t, err == nil && bytes.Equal(s, o) && len(s) == g.valueSize(),
			"%v: the secrets differ (%v)", g, err)
		e := new(big.Int).Mul(new(big.Int).SetBytes(x), new(big.Int).SetBytes(y))
		want := new(big.Int).Exp(big.NewInt(2), e, p)
		testutil.Equal(t, want.Cmp(new(big.Int).SetBytes(s)), 0, "%v: the secret is not 2^(xy)", g)
		for _, bad := range []*big.Int{
			big.NewInt(0), big.NewInt(1), new(big.Int).Sub(p, big.NewInt(1)), p,
			new(big.Int).Add(p, big.NewInt(1)),
		} {
			if _, err := g.secret(x, bad.FillBytes(make([]byte, g.valueSize()))); err == nil {
				t.Errorf("%v: a public value of %d bits is taken", g, bad.BitLen())
			}
		}
	}
}

func TestKeys(t *testing.T) {
	k := mustKey(t, exampleKey)
	testutil.True(t, k.Size() == 32 && k.Transformation() == NoHash && k.Reveal() == exampleKey,
		"the example of the specification does not come back")
	testutil.True(t, !k.Equal(mustKey(t, countingKey)) && k.Equal(with(t, SHA512)),
		"keys are compared incorrectly")
	for _, size := range keySizes {
		for h := range SHA512 + 1 {
			n := testutil.Value(NewKey(size, h))(t)
			testutil.Secret(t, n.Reveal())
			o := mustKey(t, n.Reveal())
			testutil.True(t, o.Equal(n) && o.Transformation() == h, "a new key does not come back")
		}
	}
	testutil.True(t, testutil.Err(NewKey(33, NoHash)) != nil, "33 bytes are taken")
	body := strings.TrimSuffix(strings.TrimPrefix(exampleKey, "DHHC-1:00:"), ":")
	for text, want := range map[string]string{
		"":                               "begins with",
		"DHHC-2:00:" + body + ":":        "begins with",
		"NVMeTLSkey-1:01:" + body + ":":  "begins with",
		"DHHC-1:00:" + body:              "does not end",
		"DHHC-1:00":                      "does not end",
		"DHHC-1:04:" + body + ":":        "transformation",
		"DHHC-1:0:" + body + ":":         "transformation",
		"DHHC-1:00:" + body[1:] + ":":    "base64",
		"DHHC-1:00:" + body + "!:":       "base64",
		"DHHC-1:00:" + body + "\n:":      "base64",
		"DHHC-1:00:" + body[:44] + ":":   "one of 32 48 64",
		"DHHC-1:00::":                    "has 0 bytes",
		"DHHC-1:00:j" + body[1:] + ":":   "checksum",
		strings.ToLower(exampleKey):      "begins with",
		"DHHC-1:00:" + body + ":" + "x:": "base64",
	} {
		_, err := ParseKey(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", text, err, want)
		} else if strings.Contains(err.Error(), "ia6z") {
			t.Errorf("the error tells the key: %v", err)
		}
	}
}

// TestHidden prints a key in every possible way.
func TestHidden(t *testing.T) {
	k := mustKey(t, exampleKey)
	secret := hex.EncodeToString(k.secret[:4])
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%X"} {
		for _, v := range []any{k, *k, struct{ K Key }{*k}, []*Key{k}} {
			out := strings.ToLower(fmt.Sprintf(verb, v))
			testutil.True(t, !strings.Contains(out, secret) && !strings.Contains(out, "137"),
				"%s: %s", verb, out)
		}
	}
}

// TestResponses compares with the formulas of the specification, computed by Python's hmac and
// hashlib: keys with and without transformation, with and without a session key.
func TestResponses(t *testing.T) {
	for _, row := range testutil.Rows(t, "responses") {
		var v struct {
			hash, transformation Hash
			session              bool
			want                 string
		}
		row.Scan(&v.hash, &v.transformation, &v.session, &v.want)
		x := exchange{hostNQN: hostNQN, subNQN: subNQN, tid: 0x1234, hash: v.hash}
		if v.session {
			x.session = x.hash.sum([]byte("secret"))
		}
		c := bytes.Repeat([]byte{0xA5}, v.hash.Size())
		k := with(t, v.transformation)
		got := fmt.Sprintf("%x %x", x.hostResponse(k, c, 0x01020304)[:12],
			x.controllerResponse(k, c, 0x01020304)[:12])
		testutil.Equal(t, got, v.want,
			"%v, transformation %v, session %t", v.hash, v.transformation, v.session)
	}
}

// TestExchanges runs every hash with every group in both directions.
func TestExchanges(t *testing.T) {
	for _, hash := range AllHashes {
		for _, group := range AllGroups {
			for _, both := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v %v, in both directions %t", hash, group, both),
					func(t *testing.T) {
						if group > FFDHE2048 && (hash > SHA256 || both) {
							testutil.Soak(t, "it takes long")
						}
						testExchange(t, hash, group, both)
					})
			}
		}
	}
}

func testExchange(t *testing.T, hash Hash, group Group, both bool) {
	key, other := with(t, SHA256), mustKey(t, countingKey)
	p := &Policy{Keys: []*Key{other, key}, Hashes: []Hash{hash}, Groups: []Group{group}}
	h := &Host{HostNQN: hostNQN, SubNQN: subNQN, Key: key}
	if both {
		h.ControllerKey, p.ControllerKey = other, other
	}
	c := NewController(hostNQN, subNQN, NoConcatenation)
	for range 2 { // and again
		if err := exchangeAll(h, c, p); err != nil || c.State() != Authenticated {
			t.Fatalf("%v, %v", c.State(), err)
		}
	}
	if a, b, d := c.Algorithms(); a != hash || b != group || d != both {
		t.Errorf("%v %v %t instead", a, b, d)
	}
	testutil.True(t, c.x.exponent == nil && c.x.session == nil && h.x.session == nil,
		"secrets are left")
}

// exchangeAll runs one exchange and returns the error that ends it for the host.
func exchangeAll(h *Host, c *Controller, p *Policy) error {
	c.Sent(h.Negotiate(7), p)
	return rest(h, c, p)
}

// rest runs the exchange after the negotiation.
func rest(h *Host, c *Controller, p *Policy) error {
	send, err := h.Challenged(append(c.Message(), 0, 0))
	c.Read()
	if send == nil {
		return err
	}
	c.Sent(send, p)
	if err != nil {
		return err
	}
	send, err = h.Succeeded(append(slices.Clone(c.Message()), 0, 0))
	c.Read()
	if send != nil {
		c.Sent(send, p)
	}
	return err
}

// TestRefused tests cases in which host and controller do not agree.
func TestRefused(t *testing.T) {
	key, other := with(t, NoHash), mustKey(t, countingKey)
	null := []Group{GroupNull}
	for name, tc := range map[string]struct {
		change func(h *Host, p *Policy)
		want   Reason
		byHost bool
	}{
		"wrong key": {func(h *Host, _ *Policy) { h.Key = other }, AuthenticationFailed, false},
		"wrong NQN": {func(h *Host, _ *Policy) { h.HostNQN = subNQN }, AuthenticationFailed, false},
		"wrong subsystem": {
			func(h *Host, _ *Policy) { h.SubNQN = hostNQN },
			AuthenticationFailed, false,
		},
		"wrong transformation": {
			func(h *Host, _ *Policy) { h.Key = with(t, SHA256) },
			AuthenticationFailed, false,
		},
		"no key": {func(_ *Host, p *Policy) { p.Keys = nil }, AuthenticationFailed, false},
		"no controller key": {
			func(_ *Host, p *Policy) { p.ControllerKey = nil },
			AuthenticationFailed, false,
		},
		"wrong controller key": {
			func(_ *Host, p *Policy) { p.ControllerKey = key },
			AuthenticationFailed, true,
		},
		"hash": {
			func(h *Host, p *Policy) { h.Hashes, p.Hashes = AllHashes[:1], AllHashes[1:] },
			HashNotUsable, false,
		},
		"unknown hash": {
			func(h *Host, _ *Policy) { h.Hashes = []Hash{9, 0} },
			HashNotUsable, false,
		},
		"group": {func(h *Host, p *Policy) { p.Groups = AllGroups[1:2] }, GroupNotUsable, false},
		"NULL is not by default": {
			func(_ *Host, p *Policy) { p.Groups = nil },
			GroupNotUsable, false,
		},
		"nor are large groups": {
			func(h *Host, p *Policy) { h.Groups, p.Groups = AllGroups[3:], nil },
			GroupNotUsable, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &Host{
				HostNQN: hostNQN, SubNQN: subNQN, Key: key, ControllerKey: other, Groups: null,
			}
			p := &Policy{Keys: []*Key{key}, ControllerKey: other, Groups: null}
			tc.change(h, p)
			c := NewController(hostNQN, subNQN, NoConcatenation)
			err := exchangeAll(h, c, p)
			testutil.True(t, err != nil && c.State() == Failed && c.Reason() == tc.want,
				"host: %v, controller: %v, not %v", err, c.Reason(), tc.want)
			_, refused := err.(Refused)
			testutil.True(t, refused != tc.byHost, "host: %v", err)
			exchangeAll(h, c, &Policy{Keys: []*Key{key}, ControllerKey: other, Groups: null})
			testutil.Equal(t, c.State(), Failed, "another exchange succeeds after a failure")
		})
	}
}

func BenchmarkGroups(b *testing.B) {
	for _, g := range AllGroups[1:] {
		b.Run(g.String(), func(b *testing.B) {
			x := g.newExponent()
			for b.Loop() {
				g.public(x)
			}
		})
	}
}

// TestUntil: keys are valid until Until, and all but the first only until OldUntil. The host is not
// told that they have expired.
func TestUntil(t *testing.T) {
	key, old, other := mustKey(t, countingKey), with(t, SHA256), with(t, SHA512)
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for i, tc := range []struct {
		keys            []*Key
		oldUntil, until time.Time
		key             *Key
		want            State
		expired         bool
	}{
		{[]*Key{key, old}, time.Time{}, time.Time{}, old, Authenticated, false},
		{[]*Key{key, old}, future, future, old, Authenticated, false},
		{[]*Key{key, old}, past, time.Time{}, old, Failed, true},
		{[]*Key{key, old}, past, future, key, Authenticated, false},
		{[]*Key{key, key}, past, future, key, Authenticated, false},
		{[]*Key{key, old}, future, past, old, Failed, true},
		{[]*Key{key}, time.Time{}, past, key, Failed, true},
		{[]*Key{key, old}, past, past, other, Failed, false},
	} {
		h := &Host{HostNQN: hostNQN, SubNQN: subNQN, Key: tc.key}
		c := NewController(hostNQN, subNQN, NoConcatenation)
		err := exchangeAll(h, c, &Policy{Keys: tc.keys, OldUntil: tc.oldUntil, Until: tc.until})
		testutil.True(t, c.State() == tc.want && c.Expired() == tc.expired, "%d: %v, expired %v", i,
			c.State(), c.Expired())
		testutil.True(t, tc.want != Failed || err == error(Refused{AuthenticationFailed}),
			"%d: the host is told %v", i, err)
	}
}

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
				testutil.MustTrue(t, err != nil && c.Reason() == tc.want && psk == nil &&
					c.psk == nil, "host: %v, controller: %v, PSK: %v", err, c.Reason(), psk)
				return
			}
			testutil.MustTrue(t, err == nil && c.State() == Authenticated, "%v %v", err, c.State())
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
	testutil.True(t, c.State() == Failed && c.Reason() == AuthenticationFailed && psk == nil,
		"%v %v", c.State(), c.Reason())
}

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
	compare := func(t *testing.T, to []byte, secrets [2][]byte, same func() bool) {
		testutil.SameTime(t, samples, func(class int) func() {
			copy(to, secrets[class])
			return func() {
				for range 100 {
					if same() {
						equal++
					}
				}
			}
		})
	}
	t.Run("keys", func(t *testing.T) {
		compare(t, other.secret, secrets, func() bool { return key.Equal(other) })
	})
	t.Run("keys of TLS", func(t *testing.T) {
		key := testutil.Value(NewTLSKey(SHA384))(t)
		other := &TLSKey{make([]byte, 48), SHA384}
		compare(t, other.secret, ends(48, key.secret), func() bool { return key.Equal(other) })
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

// TestTransformation compares transformed keys with results of Python for a secret of the bytes
// from 0 on (Base section 8.3.4.5):
//
//	hmac.new(bytes(range(SIZE)), (hostNQN + "NVMe-over-Fabrics").encode(), HASH).hexdigest()
//
// tool is the output of nvme-cli 2.3 for this secret. There the transformed key is the secret.
//
//	nvme gen-dhchap-key --hmac=1 --nqn=HOSTNQN --secret=0001..1f --key-length=32
func TestTransformation(t *testing.T) {
	for _, row := range testutil.Rows(t, "transformations") {
		var tc struct {
			hash       Hash
			size       int
			want, tool string
		}
		row.Scan(&tc.hash, &tc.size, &tc.want, &tc.tool)
		secret := make([]byte, tc.size)
		for i := range secret {
			secret[i] = byte(i)
		}
		got := (&Key{secret, tc.hash}).transformed(hostNQN)
		testutil.Equal(t, hex.EncodeToString(got), tc.want,
			"%v, %d bytes: %x", tc.hash, tc.size, got)
		if tc.tool == "" {
			continue
		}
		if k := mustKey(t, tc.tool); hex.EncodeToString(k.secret) != tc.want || k.hash != tc.hash {
			t.Errorf("%v, %d bytes: nvme-cli has another key", tc.hash, tc.size)
		}
	}
	got := (&Key{[]byte{1, 2}, NoHash}).transformed(hostNQN)
	testutil.True(t, hex.EncodeToString(got) == "0102", "a key without transformation: %x", got)
}
