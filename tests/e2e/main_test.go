package e2e

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestMain fails if a goroutine, a file descriptor or off-heap memory is left after all tests. In a
// process started by TestManyAuthenticate it runs the hosts of that test.
func TestMain(m *testing.M) {
	if key := os.Getenv(hostsKey); key != "" {
		os.Exit(authenticatingHosts(key))
	}
	if arg := os.Getenv(floodKey); arg != "" {
		os.Exit(floodHellos(arg))
	}
	flag.Parse()
	// Most tests wait for reactors and hosts more than they compute.
	_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	testutil.Main(m, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("off-heap memory is left: %+v", u)
		}
		return nil
	})
}
