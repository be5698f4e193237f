package rates

import (
	"maps"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestGrowth: restarted counters count from zero, and all counters of an object together. If no
// time has passed, the rate is zero, not infinite.
func TestGrowth(t *testing.T) {
	type counts = map[string]uint64
	five := counts{"a": 5, "b": 1}
	for name, tc := range map[string]struct{ old, now, want counts }{
		"more":              {five, counts{"a": 7, "b": 1}, counts{"a": 2, "b": 0}},
		"after a restart":   {five, counts{"a": 3, "b": 4}, counts{"a": 3, "b": 4}},
		"nothing is known":  {nil, counts{"a": 3}, counts{"a": 3}},
		"nothing is left":   {counts{"a": 3}, counts{}, counts{}},
		"one that is new":   {counts{"a": 3}, counts{"a": 4, "b": 9}, counts{"a": 1, "b": 9}},
		"the largest value": {counts{"a": 0}, counts{"a": 1<<64 - 1}, counts{"a": 1<<64 - 1}},
	} {
		got := Since(tc.old, tc.now)
		testutil.True(t, maps.Equal(got, tc.want), "%s: %v, want %v", name, got, tc.want)
	}
	for _, tc := range [][4]uint64{
		{0, 0, 0, 0}, {1, 4, 3, 3}, {4, 4, 0, 0}, {4, 1, 1, 0}, {4, 0, 0, 0},
	} {
		growth, rise := Growth(tc[0], tc[1]), Rise(tc[0], tc[1])
		testutil.True(t, growth == tc[2] && rise == tc[3],
			"from %d to %d: growth %d, rise %d, want %d and %d", tc[0], tc[1], growth, rise, tc[2],
			tc[3])
	}
	for _, tc := range []struct{ seconds, want float64 }{{2, 5}, {0.5, 20}, {0, 0}, {-1, 0}} {
		testutil.Equal(t, Per(10, tc.seconds), tc.want, "10 in %v s", tc.seconds)
	}
}

// TestEach: an object is compared with itself at any position, and a new one with nil.
func TestEach(t *testing.T) {
	type object struct {
		name string
		n    int
	}
	got := map[object]*object{}
	old := []object{{"gone", 1}, {"a", 2}, {"b", 3}}
	Each(old, []object{{"b", 4}, {"new", 5}, {"a", 6}}, func(o *object) string { return o.name },
		func(old, now *object) { got[*now] = old })
	testutil.True(t, len(got) == 3 && got[object{"new", 5}] == nil &&
		got[object{"a", 6}] == &old[1] && got[object{"b", 4}] == &old[2], "%v", got)
}
