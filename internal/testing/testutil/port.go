package testutil

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// tried counts the ports that this process has tried.
var tried atomic.Int64

// FreePort returns a port of TCP and UDP that nothing uses at any address, another one each time.
// It is below the ephemeral ports, so that no socket of another process gets it by chance, and no
// other test gets it before the end of this one.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	const first, last = 20000, 32000
	// Processes that run at the same time begin at places that are far apart.
	for range last - first {
		port := first + (os.Getpid()*101+int(tried.Add(1)))%(last-first)
		name, err := net.Listen("unix", reservation(port))
		if err != nil {
			continue
		}
		if l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)); err == nil {
			u, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
			if _ = l.Close(); err == nil {
				_ = u.Close()
				t.Cleanup(func() { _ = name.Close() })
				return uint16(port)
			}
		}
		_ = name.Close()
	}
	t.Fatalf("no free port between %d and %d", first, last)
	return 0
}

// reservation is the name of a socket that has the port for a test. The name belongs to the network
// namespace, as the port does (unix(7), abstract).
func reservation(port int) string { return fmt.Sprintf("@nvmf-target-test-%d", port) }
