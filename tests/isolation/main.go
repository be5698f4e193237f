package isolation

import (
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// Main is harness.Main. In a process started by a test it does the work selected by childMode.
func Main(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(childMain(mode))
	}
	harness.Main(m)
}
