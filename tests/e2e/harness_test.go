package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
