package e2e

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// TestMain fails if a goroutine, a file descriptor or off-heap memory is left when everything has
// been closed.
func TestMain(m *testing.M) {
	// Reactors that spin occupy a processor each; see internal/app.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	}
	testutil.Main(m, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("off-heap memory is left: %+v", u)
		}
		return nil
	})
}
