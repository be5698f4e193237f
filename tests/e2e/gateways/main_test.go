package gateways

import (
	"fmt"
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/tests/e2e"
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
	e2e.Main(m)
}
