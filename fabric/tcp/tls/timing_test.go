package tls

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestTiming: the time to check a binder does not depend on the position of the difference.
func TestTiming(t *testing.T) {
	psk := testPSKs(t, auth.SHA384)[0]
	c := newRawClient(psk)
	h := testutil.Value(parseHello(c.send(c.hello())))(t)
	testutil.MustTrue(t, h.bindsTo(psk, h.psks[0].binder), "the right binder is refused")
	var binders [2][]byte
	for i, at := range []int{0, 47} {
		binders[i] = bytes.Clone(h.psks[0].binder)
		binders[i][at] ^= 1
	}
	binder := make([]byte, 48)
	testutil.SameTime(t, 100_000, func(class int) func() {
		copy(binder, binders[class])
		return func() { testutil.True(t, !h.bindsTo(psk, binder), "a wrong binder is taken") }
	})
}
