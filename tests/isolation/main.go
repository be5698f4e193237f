package isolation

import (
	"fmt"
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// Main runs the tests of a package, and fails if a goroutine, a file descriptor or off-heap memory
// is left after them. In a process started by a test it does the work selected by childMode.
func Main(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(childMain(mode))
	}
	testutil.Main(m, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("off-heap memory is left: %+v", u)
		}
		return nil
	})
}
