package testutil

import "testing"

var sink *int

func TestAllocsPerRun(t *testing.T) {
	calls := 0
	for name, tc := range map[string]struct {
		fn   func()
		want float64
	}{
		"nothing":       {func() {}, 0},
		"always":        {func() { sink = new(int) }, 1},
		"at first":      {func() { calls++; sink = after(calls, 50) }, 0},
		"more at first": {func() { calls++; sink = new(int); sink = after(calls, 50) }, 1},
		"seldom enough": {func() { calls++; sink = after(calls%50, 2) }, 0},
		"every other one": {
			func() { calls++; sink, sink = after(calls%2, 1), after(calls%2, 1) },
			1,
		},
	} {
		calls = 0
		if got := AllocsPerRun(10, tc.fn); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// after allocates if n is less than limit.
func after(n, limit int) *int {
	if n < limit {
		return new(int)
	}
	return nil
}
