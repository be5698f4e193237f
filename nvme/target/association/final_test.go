package association

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestGoneIsBounded: a bounded number of removed names is remembered, the last one among them.
func TestGoneIsBounded(t *testing.T) {
	var f Final
	many := map[string]bool{}
	for i := range maxGone {
		many[fmt.Sprint(i)] = true
	}
	f.gone.Store(&many)
	f.SetGone("last", true)
	testutil.True(t, len(*f.gone.Load()) == maxGone && f.IsGone("last"),
		"the last one is forgotten")
	f.SetGone("last", false)
	testutil.True(t, !f.IsGone("last"), "one that is back is gone")
}
