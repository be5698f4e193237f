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
