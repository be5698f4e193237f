package auth

import (
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// The vectors of libnvme (test/psk.c): keys, and the identities for these names.
const (
	pskHost = "nqn.psk-test-host"
	pskSub  = "nqn.psk-test-subsys"
	psk32   = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
	psk48   = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:"
)

func mustTLSKey(t testing.TB, text string) *TLSKey {
	t.Helper()
	k := testutil.Value(ParseTLSKey(text))(t)
	return k
}

// TestTLSIdentities compares with the identities of libnvme, in both encodings.
func TestTLSIdentities(t *testing.T) {
	for text, want := range map[string][2]string{
		"NVMeTLSkey-1:01:" + psk32: {
			"iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
			"66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
		},
		"NVMeTLSkey-1:02:" + psk48: {
			"QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
			"RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
		},
	} {
		k := mustTLSKey(t, text)
		psks, err := k.PSKs(pskHost, pskSub)
		testutil.MustTrue(t, err == nil && len(psks) == 4, "%d PSKs: %v", len(psks), err)
		names := fmt.Sprintf("R%s %s %s", text[13:15], pskHost, pskSub)
		for i, want := range []string{
			"NVMe1" + names + " " + want[0], "NVMe0" + names,
			"NVMe1" + names + " " + want[1], "NVMe0" + names,
		} {
			p := psks[i]
			testutil.True(t, p.Identity == want && p.Hash == k.Hash() &&
				len(p.Secret) == k.Size() && p.Compat == (i >= 2), "identity %d is %v, not %s", i,
				p, want)
			id, err := ParseTLSIdentity([]byte(p.Identity))
			testutil.True(t, err == nil && id.HostNQN == pskHost && id.SubNQN == pskSub &&
				id.Hash == p.Hash && id.Version == 1-i%2 && !id.Generated, "%v is read as %+v, %v",
				p, id, err)
		}
		testutil.True(t, !slices.Equal(psks[1].Secret, psks[3].Secret),
			"both encodings of version 0 give one secret")
	}
}

// TestTLSPSK compares with the vectors of Linux (drivers/nvme/common/tests/auth_kunit.c). Their
// generated PSKs are used like retained PSKs.
func TestTLSPSK(t *testing.T) {
	for _, v := range []struct{ psk, digest, secret string }{
		{
			"1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
			"OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
			"3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
		},
		{
			"f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e" +
				"118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
			"cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
			"2774753233537b3fa50eb7d16a8e43457d85f4906c005b22" +
				"36616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
		},
	} {
		raw := testutil.Value(hex.DecodeString(v.psk))(t)
		psks := testutil.Value((&TLSKey{raw, NoHash}).PSKs("hostnqn", "subsysnqn"))(t)
		if got := psks[0]; !strings.HasSuffix(got.Identity, " hostnqn subsysnqn "+v.digest) ||
			hex.EncodeToString(got.Secret) != v.secret {
			t.Errorf("%v with %x, not %s", got, got.Secret, v.secret)
		}
	}
}

func TestTLSKeys(t *testing.T) {
	none, with := mustTLSKey(t, "NVMeTLSkey-1:00:"+psk32), mustTLSKey(t, "NVMeTLSkey-1:01:"+psk32)
	testutil.True(t, !none.Equal(with) && none.Equal(mustTLSKey(t, none.Reveal())),
		"keys are compared incorrectly")
	for hash, size := range map[Hash]int{NoHash: 32, SHA256: 32, SHA384: 48} {
		k, err := NewTLSKey(hash)
		testutil.True(t, err == nil && k.Size() == size && mustTLSKey(t, k.Reveal()).Equal(k),
			"%v: a new key does not come back: %v", hash, err)
	}
	testutil.True(t, testutil.Err(NewTLSKey(SHA512)) != nil, "a key of 64 bytes is made")
	for text, want := range map[string]string{
		"":                                 "begins with NVMeTLSkey-1:",
		exampleKey:                         "begins with NVMeTLSkey-1:",
		"NVMeTLSkey-2:01:" + psk32:         "begins with",
		"NVMeTLSkey-1:03:" + psk32:         "none of 00, 01, 02",
		"NVMeTLSkey-1:01:" + psk48:         "32 bytes go with sha256",
		"NVMeTLSkey-1:02:" + psk32:         "32 bytes go with sha256",
		"NVMeTLSkey-1:01:" + psk32 + "x":   "does not end",
		"NVMeTLSkey-1:01:W" + psk32[1:]:    "checksum",
		"NVMeTLSkey-1:01:" + psk32[4:]:     "has 29 bytes, must be one of 32 48",
		"NVMeTLSkey-1:01::":                "has 0 bytes",
		"NVMeTLSkey-1:01:\n" + psk32:       "base64",
		"NVMeTLSkey-1:01:" + psk32 + psk32: "base64",
	} {
		_, err := ParseTLSKey(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", text, err, want)
		} else if strings.Contains(err.Error(), "RLb") {
			t.Errorf("the error tells the key: %v", err)
		}
	}
	psks := testutil.Value(none.PSKs(pskHost, pskSub))(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%X"} {
		for _, v := range []any{none, *none, []*TLSKey{none}, psks, psks[0], &psks[0]} {
			out := strings.ToLower(fmt.Sprintf(verb, v))
			for _, secret := range [][]byte{none.secret, psks[0].Secret} {
				testutil.True(t, !strings.Contains(out, hex.EncodeToString(secret[:4])) &&
					!strings.Contains(out, fmt.Sprintf("%d %d", secret[0], secret[1])), "%s: %s",
					verb, out)
			}
		}
	}
}

// TestHostileIdentities parses identities that anyone may send before a handshake.
func TestHostileIdentities(t *testing.T) {
	digest := " iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="
	long := strings.Repeat("n", maxNQN)
	for text, want := range map[string]string{
		"":                               "begins with none",
		"NVMe0G01 h s":                   "begins with none",
		"NVMe1R03 h s" + digest:          "begins with none",
		"NVMe2R01 h s" + digest:          "begins with none",
		"NVMe0R01":                       "has 1 fields, not 3",
		"NVMe0R01 h s" + digest:          "has 4 fields, not 3",
		"NVMe1R01 h s":                   "has 3 fields, not 4",
		"NVMe1R01  s" + digest:           "NQN of 0 bytes",
		"NVMe1R01 h " + digest:           "NQN of 0 bytes",
		"NVMe0R01 h s\x00":               "control character",
		"NVMe0R01 h\n s":                 "control character",
		"NVMe0R01 \xff s":                "not UTF-8",
		"NVMe1R02 h s" + digest:          "not base64 of 48 bytes",
		"NVMe1R01 h s" + digest[:44]:     "not base64 of 32 bytes",
		"NVMe1R01 h s" + digest + "\n":   "not base64 of 32 bytes",
		"NVMe0R01 " + long + "n s":       "NQN of 224 bytes",
		"NVMe0R01 " + long + long + long: "too long",
	} {
		testutil.Fails(t, testutil.Err(ParseTLSIdentity([]byte(text))), want, "%q", text)
	}
	// The longest names fit into an identity of version 1 only.
	k := testutil.Value(NewTLSKey(SHA384))(t)
	psks, err := k.PSKs(long, long)
	testutil.MustTrue(t, err == nil && len(psks) == 2, "%v: %v", psks, err)
	testutil.Check(t, testutil.Err(ParseTLSIdentity([]byte(psks[0].Identity))))
	testutil.True(t, testutil.Err(k.PSKs("a name", pskSub)) != nil, "a name with a space is taken")
}

// FuzzTLSIdentity parses any identity. A valid one can be rebuilt from its fields.
func FuzzTLSIdentity(f *testing.F) {
	k := testutil.Value(NewTLSKey(SHA384))(f)
	psks := testutil.Value(k.PSKs(pskHost, pskSub))(f)
	for _, p := range psks {
		f.Add([]byte(p.Identity))
		f.Add([]byte(strings.Replace(p.Identity, "NVMe1R", "NVMe1G", 1)))
	}
	f.Fuzz(func(t *testing.T, identity []byte) {
		id, err := ParseTLSIdentity(identity)
		if err != nil {
			return
		}
		kind := "R"
		if id.Generated {
			kind = "G"
		}
		again := fmt.Sprintf("NVMe%d%s%02d %s %s", id.Version, kind, id.Hash, id.HostNQN, id.SubNQN)
		if id.Version == 1 {
			again += " " // and the digest
		}
		if rest, ok := strings.CutPrefix(string(identity), again); !ok ||
			(rest == "") == (id.Version == 1) || strings.Contains(rest, " ") {
			t.Errorf("%q is read as %q", identity, again)
		}
	})
}

// FuzzParseTLSKey parses any text. A valid key is formatted unchanged.
func FuzzParseTLSKey(f *testing.F) {
	f.Add("NVMeTLSkey-1:00:" + psk32)
	f.Add("NVMeTLSkey-1:02:" + psk48)
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseTLSKey(text)
		if err != nil {
			return
		}
		testutil.Equal(t, k.Reveal() == text, true, "the key comes back")
	})
}

// TestTLSIdentityWork: a ClientHello costs a bounded number of hash computations before its binder
// is checked, because anybody may send one.
func TestTLSIdentityWork(t *testing.T) {
	made, constructor := 0, hashes[SHA384].new
	hashes[SHA384].new = func() hash.Hash {
		made++
		return constructor()
	}
	defer func() { hashes[SHA384].new = constructor }()
	key := testutil.Value(NewTLSKey(SHA384))(t)
	for _, p := range testutil.Value(key.PSKs(pskHost, pskSub))(t) {
		id := testutil.Value(ParseTLSIdentity([]byte(p.Identity)))(t)
		made = 0
		WithIdentity(p.Identity, id, []*TLSKey{key})
		testutil.Equal(t, made, 50, "hashes")
	}
}

// TestTLSIdentityTime: for any identity the target does the same computations, with any keys of the
// host and without.
func TestTLSIdentityTime(t *testing.T) {
	for _, h := range []Hash{SHA256, SHA384} {
		made, constructor := 0, hashes[h].new
		hashes[h].new = func() hash.Hash {
			made++
			return constructor()
		}
		defer func() { hashes[h].new = constructor }()
		keys := make([]*TLSKey, 2)
		for i := range keys {
			keys[i], _ = NewTLSKey(h)
		}
		other, _ := NewTLSKey(SHA256 + SHA384 - h)
		noHash := &TLSKey{keys[1].secret, NoHash}
		psks := testutil.Value(keys[0].PSKs(pskHost, pskSub))(t)
		want := 0
		for _, p := range psks[:2] { // of both versions
			id, _ := ParseTLSIdentity([]byte(p.Identity))
			for _, tc := range []struct {
				keys []*TLSKey
				n    int
			}{
				{nil, 0},
				{keys[:1], 1},
				{keys, 1},
				{keys[1:], 0},
				{[]*TLSKey{other}, 0},
				{[]*TLSKey{other, keys[0]}, 1},
				{[]*TLSKey{keys[0], noHash}, 1},
			} {
				n := tc.n
				if id.Version == 0 { // does not show which key it is
					n = 2 * len(slices.DeleteFunc(slices.Clone(tc.keys),
						func(k *TLSKey) bool { return k == other }))
				}
				made = 0
				if got := WithIdentity(p.Identity, id, tc.keys); len(got) != n {
					t.Errorf("%v: %d PSKs of %d keys, not %d", p, len(got), len(tc.keys), n)
				}
				if want == 0 {
					want = made
				}
				testutil.True(t, made == want, "%v: %d hashes with %d keys, not %d", p, made,
					len(tc.keys), want)
			}
		}
	}
}
