package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/bench"
)

// TestEarlyEnd: the reason of an early end is printed once, and the exit code says so, too.
func TestEarlyEnd(t *testing.T) {
	var out bytes.Buffer
	err := output(&out, &bench.Report{Target: &bench.Target{}, Error: "no answer"}, "", "")
	if err == nil || strings.Count(out.String()+err.Error(), "no answer") != 1 {
		t.Errorf("%s%v", &out, err)
	}
	if err := output(&out, &bench.Report{Target: &bench.Target{}}, "", ""); err != nil {
		t.Error(err)
	}
}
