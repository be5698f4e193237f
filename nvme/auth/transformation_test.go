package auth

import (
	"encoding/hex"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTransformation compares transformed keys with results of Python for a secret of the bytes
// from 0 on (Base section 8.3.4.5):
//
//	hmac.new(bytes(range(SIZE)), (hostNQN + "NVMe-over-Fabrics").encode(), HASH).hexdigest()
//
// tool is the output of nvme-cli 2.3 for this secret. There the transformed key is the secret.
//
//	nvme gen-dhchap-key --hmac=1 --nqn=HOSTNQN --secret=0001..1f --key-length=32
func TestTransformation(t *testing.T) {
	for _, tc := range []struct {
		hash       Hash
		size       int
		want, tool string
	}{
		{
			SHA256, 32, "441855b86983fdeca56e2c849ee0956d0963393ad1832c66199a03c5a0ccc84b",
			"DHHC-1:01:RBhVuGmD/eylbiyEnuCVbQljOTrRgyxmGZoDxaDMyEseeX3V:",
		},
		{
			SHA256, 48, "91304d93b9e5a1a53f8fa1fc6ef3ea4df87b421955bb9e5c609add3389cb25cb", "",
		},
		{
			SHA256, 64, "67575f19901f7d30d451b63b8c7d17c7e7853d0392e57865324bdef9928c0a74", "",
		},
		{
			SHA384, 32, "1c982e5cc5aa47fe61e7653f4bfa538b1f659f9880c03909" +
				"ef7dba31c67e20036abb4644e9b9144de72b95e25baeb4d2", "",
		},
		{
			SHA384, 48, "8c5cfc2bc085e372650d2e38308e03279e718946c33a9e72" +
				"4e28f2719121039c6dfdd0365f4dfb9e15a96b97ab0607ae",
			"DHHC-1:02:jFz8K8CF43JlDS44MI4DJ55xiUbDOp5yTijycZEhA5xt/dA2X037nhWpa5erBgeumFH0Cw==:",
		},
		{
			SHA384, 64, "d28f1a6617650728de88b9a190c0ba4cc2e4969f471c0c8a" +
				"e050f2913d75aa0396758539843675822193052284590f26", "",
		},
		{
			SHA512, 32, "a4b6416930d24e475b7333a168de8d87014aacfa1524df3cef3e9084aab59a03" +
				"9dc8949e8193e2283c33ed6f5cec9e066f898b63446215e61356646d19db39c8", "",
		},
		{
			SHA512, 48, "b9bdb36a77a0916ec3bae92dfc468f9a7fd88298fb2a2248023b9f0d1f45fb15" +
				"d255744b6769306c022cb0a1a30a9fa89fa439a3a6c79aae87bf4ed63eeb9ee7", "",
		},
		{
			SHA512, 64, "63ad2fc4c2991de7b69f8ef444fcb890f9d282778e44ad917344bdc6d426d052" +
				"14c16e6b199793764f4fa2635140ee7d16acd3ce76ea16bc28f9938dfc997de1",
			"DHHC-1:03:Y60vxMKZHee2n470RPy4kPnSgneORK2Rc0S9xtQm0FIUwW5rGZeTdk9PomN" +
				"RQO59FqzTznbqFrwo+ZON/Jl94dOINyY=:",
		},
	} {
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
