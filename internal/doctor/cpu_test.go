package doctor

import (
	"slices"
	"testing"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,8": {0, 2, 3, 8}, "x": nil,
	} {
		if got := parseCPUs(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
	}
}
