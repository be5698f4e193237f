package association

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestIdentifiers: identifiers are used again as late as possible, and stay in their range, which
// may change. A search takes a step for 64 of them, however many are in use.
func TestIdentifiers(t *testing.T) {
	var s Identifiers
	take := func(first, last, want uint16) {
		t.Helper()
		id, ok := s.Take(first, last)
		testutil.True(t, ok && id == want, "%d, %t; want %d", id, ok, want)
	}
	none := func(first, last uint16) {
		t.Helper()
		id, ok := s.Take(first, last)
		testutil.True(t, !ok, "%d is free", id)
	}
	for id := uint16(100); id <= 300; id++ {
		take(100, 300, id)
	}
	none(100, 300)
	s.Free(299)
	s.Free(140)
	take(100, 300, 140)
	take(100, 300, 299)
	none(100, 300)
	take(50, 300, 50)
	take(99, 101, 99)
	none(99, 101)
	take(65000, 0xFFFF, 65000)
	s.next = 0xFFFF
	take(65000, 0xFFFF, 0xFFFF)
	take(65000, 0xFFFF, 65001)
	testutil.Equal(t, len(s.used), 1024, "words, which a search looks at")
}
