package e2e

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// Main is harness.Main for packages with tests that wait for reactors and hosts more than they
// compute: it runs more of them at once.
func Main(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	harness.Main(m)
}
