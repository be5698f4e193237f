package httpd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// Listen listens on a TCP address; port 0 means any free port, and [::] also serves IPv4. An error
// says how to fix it.
func Listen(at netip.AddrPort) (net.Listener, error) {
	network := "tcp"
	if at.Addr().Is4() { // "tcp" would take 0.0.0.0 for [::]
		network = "tcp4"
	}
	l, err := net.Listen(network, at.String())
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w%s", err, hint(err))
	}
	return l, nil
}

// Remote returns the address of the peer of a TCP connection. An IPv4 peer has an IPv4 address even
// if the listener is at [::].
func Remote(c net.Conn) netip.AddrPort {
	at := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// hint returns a fix for an error of listen(2).
func hint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return " (another process listens there: see ss -ltnp, or choose another port)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (no interface has this address: see ip address)"
	case errors.Is(err, syscall.EACCES):
		return " (a port below 1024 needs CAP_NET_BIND_SERVICE; choose one above)"
	}
	return ""
}
