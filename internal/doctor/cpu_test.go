package doctor

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,8": {0, 2, 3, 8}, "x": nil,
	} {
		testutil.EqualSlices(t, parseCPUs(text), want, "%q", text)
	}
}
