package tcp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// choose sets the options of a listening socket that the configuration asks for; accepted sockets
// inherit them. An error comes with the name of the option.
func (c *Config) choose(fd int) (what string, err error) {
	if c.BusyPoll > 0 {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL,
			int(c.BusyPoll.Microseconds()))
		switch {
		case errors.Is(err, unix.EPERM):
			err = errors.New(
				"needs the capability CAP_NET_ADMIN, or sysctl net.core.busy_read of at least as much")
		case errors.Is(err, unix.ENOPROTOOPT):
			err = fmt.Errorf("%w: this kernel was built without NET_RX_BUSY_POLL", err)
		}
		if err != nil {
			return "SO_BUSY_POLL", err
		}
	}
	if name := c.CongestionControl; name != "" {
		err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		switch {
		case errors.Is(err, unix.EPERM):
			err = fmt.Errorf(
				"%q needs the capability CAP_NET_ADMIN, or to be in sysctl net.ipv4.tcp_allowed_congestion_control", name)
		case errors.Is(err, unix.ENOENT):
			err = fmt.Errorf("%q is not in sysctl net.ipv4.tcp_available_congestion_control", name)
		}
		if err != nil {
			return "TCP_CONGESTION", err
		}
	}
	return "", nil
}
