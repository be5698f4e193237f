package e2e

import (
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

type testBody func(t *testing.T, h *Env, v Variant)

// eachVariant runs fn on a harness for each variant. change alters the options.
func eachVariant(t *testing.T, change func(*Options), fn testBody) {
	runVariants(t, Variants, change, fn)
}

// eachTransport is eachVariant with one variant per transport.
func eachTransport(t *testing.T, change func(*Options), fn testBody) {
	runVariants(t, Plain, change, fn)
}

func runVariants(t *testing.T, list []Variant, change func(*Options), fn testBody) {
	for _, v := range list {
		t.Run(v.Name, func(t *testing.T) {
			if v.TCP.PSK != nil {
				NeedTLS(t)
			}
			o := v.Options
			if change != nil {
				change(&o)
			}
			fn(t, New(t, o), v)
		})
	}
}

// wantStatus checks the status of a command.
func wantStatus(t *testing.T, what string, err error, want nvme.Status) {
	t.Helper()
	st, ok := hosttest.StatusOf(err)
	testutil.True(t, ok && st&^nvme.More == want, "%s: %v, want %v", what, err, want)
}

// noise is the data of pattern. Its length is a prime number: no two blocks start at the same byte.
var noise = func() []byte {
	b := make([]byte, 65537)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}()

// pattern fills b with bytes that depend on seed and position. It copies them: the race detector
// looks at each access, and a copy is one.
func pattern(b []byte, seed uint32) {
	for at := int(seed*7919) % len(noise); len(b) > 0; at = 0 {
		b = b[copy(b, noise[at:]):]
	}
}
