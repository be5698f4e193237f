package e2e

import (
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

// pattern fills b with bytes that depend on seed and position.
func pattern(b []byte, seed uint32) {
	x := seed*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
