package e2e

import (
	"os"
	"testing"
)

// TestMain runs the hosts of TestManyAuthenticate or of TestHelloFlood in a process that one of
// them has started.
func TestMain(m *testing.M) {
	if key := os.Getenv(hostsKey); key != "" {
		os.Exit(authenticatingHosts(key))
	}
	if arg := os.Getenv(floodKey); arg != "" {
		os.Exit(floodHellos(arg))
	}
	Main(m)
}
