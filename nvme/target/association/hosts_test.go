package association

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestHosts: a host is another one with the same NQN or the same identifier, until its last
// controller has ended.
func TestHosts(t *testing.T) {
	var h Hosts[int]
	one, two := [16]byte{1}, [16]byte{2}
	h.Add("a", one, 11)
	h.Add("a", one, 12)
	testutil.Equal(t, h.Other("a", one), 0, "other of the same host")
	testutil.True(t, h.Other("a", two) != 0 && h.Other("b", one) != 0, "another host is not found")
	testutil.Equal(t, h.Other("b", two), 0, "other of an unknown host")
	h.Remove("a", one, 11)
	testutil.Equal(t, h.Other("a", two), 12, "other")
	h.Remove("a", two, 13) // was not added
	h.Remove("a", one, 12)
	testutil.Equal(t, len(h.byNQN)+len(h.byID), 0, "controllers that are left")
}
