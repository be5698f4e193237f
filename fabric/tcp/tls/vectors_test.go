package tls

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b := testutil.Value(hex.DecodeString(s))(t)
	return b
}

// TestRecordVectors uses records of the exchange that became the first one of RFC 8448
// (draft-ietf-tls-tls13-vectors-06, as in OpenSSL's test/tls13encryptiontest.c).
func TestRecordVectors(t *testing.T) {
	needTLS(t)
	data := unhex(t, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"+
		"202122232425262728292a2b2c2d2e2f3031")
	for _, tc := range []struct {
		key, iv string
		seq     uint64
		typ     byte
		content []byte
		sealed  string
	}{
		{
			"88b96ad686c84be55ace18a59cce5c87", "b99dc58cd5ff5ab082fdad19", 0,
			typeApplication, data,
			"8c3497da00ae023e53c01b4324b665404c1b49e78fe2bf4d17f6348ae8340551" +
				"e363a0cd05f2179c4fef5ad689b5cae0bae94adc63632e571fb79aa91544c6394d28a1",
		},
		{
			"a688ebb5ac826d6f42d45c0cc44b9b7d", "c1cad4425a438b5de714830a", 1,
			typeApplication, data,
			"f65f49fd2df6cd2347c3d30166e3cfddb6308a5906c076112c6a37ff1dbd406b" +
				"5813c0abd734883017a6b2833186b13c14da5d75f33d8760789994e27d82043ab88d65",
		},
		{
			"a688ebb5ac826d6f42d45c0cc44b9b7d", "c1cad4425a438b5de714830a", 2, typeAlert,
			[]byte{levelWarning, alertCloseNotify},
			"f8141ebdb5eda511e0bce639a56ff9ea825a21",
		},
	} {
		r := testutil.Value(mem.Map("test", 4096))(t)
		defer r.Unmap()
		b := r.Bytes()
		v := openssl.Vectors(b[:16])
		sys.SetIovec(&v[0], b[16:16+copy(b[16:], tc.content)])
		out := b[1024:]
		for _, seal := range []bool{true, false} {
			a := testutil.Value(openssl.NewAEAD(seal, unhex(t, tc.key), unhex(t, tc.iv)))(t)
			defer a.Free()
			want := unhex(t, tc.sealed)
			if seal {
				n, ok := a.Seal(out, tc.seq, v, 0, len(tc.content), maxContent, tc.typ)
				if !ok || !bytes.Equal(out[recordHeader:n], want) {
					t.Errorf("sealed: % x", out[:n])
				}
				continue
			}
			record := append([]byte{typeApplication, 3, 3, 0, byte(len(want))}, want...)
			got := make([]byte, len(tc.content))
			typ, ok := a.Open(got, tc.seq, record, len(want)-tagSize)
			testutil.True(t, ok && typ == tc.typ && bytes.Equal(got, tc.content),
				"opened: % x, type %d, %t", got, typ, ok)
		}
	}
}

// TestTrafficKeys derives keys from a traffic secret (draft-ietf-tls-tls13-vectors-07, which became
// RFC 8448).
func TestTrafficKeys(t *testing.T) {
	k := newSchedule(auth.SHA256)
	secret := unhex(t, "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
	got := k.expand(secret, "key", nil, 16)
	testutil.True(t, hex.EncodeToString(got) == "3fce516009c21727d0f2e4e86ee403bc", "key % x", got)
	got = k.expand(secret, "iv", nil, 12)
	testutil.True(t, hex.EncodeToString(got) == "5d313eb2671276ee13000b30", "IV % x", got)
}
