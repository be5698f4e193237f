package e2e

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// TestMain fails if a goroutine, a file descriptor or off-heap memory is left when everything has been closed.
func TestMain(m *testing.M) {
	// Reactors that spin occupy a processor each; see internal/app.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	}
	before := openFDs()
	code := m.Run()
	if code == 0 {
		if err := leaks(before); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}

func leaks(fdsBefore int) error {
	if err := goleak.Find(); err != nil {
		return fmt.Errorf("goroutines are left: %w", err)
	}
	if n := openFDs(); n > fdsBefore+4 { // the runtime's poller and standard library caches
		return fmt.Errorf("file descriptors: %d before, %d after", fdsBefore, n)
	}
	if u := mem.Usage(); len(u) > 0 {
		return fmt.Errorf("off-heap memory is left: %+v", u)
	}
	return nil
}

func openFDs() int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(e)
}
