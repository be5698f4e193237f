package testutil

import (
	"net"
	"testing"
)

// TestFreePort: a port is reserved until the end of the test, also in other processes.
func TestFreePort(t *testing.T) {
	port := 0
	t.Run("reserved", func(t *testing.T) {
		port = int(FreePort(t))
		_, err := net.Listen("unix", reservation(port))
		True(t, err != nil, "it is not reserved")
	})
	other := Value(net.Listen("unix", reservation(port)))(t) // as in another process
	defer other.Close()
	tried.Add(-1)
	True(t, int(FreePort(t)) != port, "the port of another test")
}
