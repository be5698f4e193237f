package gateways

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// TestMain runs a gateway in a process that a test has started.
func TestMain(m *testing.M) {
	if file := os.Getenv(gatewayKey); file != "" {
		if err := runGateway(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	_ = flag.Set("test.parallel", "16") // all at once, since they mostly wait
	harness.Main(m)
}
