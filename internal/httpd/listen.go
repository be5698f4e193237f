package httpd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// Listen listens on TCP. Port 0 means any free port, and [::] includes IPv4. An error has a hint.
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

// Remote returns the address of a TCP peer, as IPv4 for an IPv4 peer also of [::].
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
