package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/bench"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestEarlyEnd: the reason for an early end is printed once and gives the exit code.
func TestEarlyEnd(t *testing.T) {
	var out bytes.Buffer
	err := output(&out, &bench.Report{Target: &bench.Target{}, Error: "no answer"}, "", "")
	testutil.True(t, err != nil && strings.Count(out.String()+err.Error(), "no answer") == 1,
		"%s%v", &out, err)
	testutil.Check(t, output(&out, &bench.Report{Target: &bench.Target{}}, "", ""))
}
