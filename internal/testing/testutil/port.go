package testutil

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// FreePort returns a TCP port on which nothing listens at any address. It is below the ephemeral
// ports, so that no connection of another process gets it by chance.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	const first, last = 20000, 32000
	for i := range last - first {
		port := first + (os.Getpid()+i)%(last-first)
		if l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)); err == nil {
			_ = l.Close()
			return uint16(port)
		}
	}
	t.Fatalf("no free port between %d and %d", first, last)
	return 0
}
