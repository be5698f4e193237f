//go:build invariants

package list

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestSteps: a turn with too many steps panics.
func TestSteps(t *testing.T) {
	s := NewSteps()
	for range 3 {
		s.Begin()
		s.Add(StepsMost)
	}
	n := s.Most()
	testutil.True(t, n == StepsMost && s.Most() == 0, "%d steps at most", n)
	defer func() { testutil.True(t, recover() != nil, "nothing has noticed one step too many") }()
	s.Add(1)
}
