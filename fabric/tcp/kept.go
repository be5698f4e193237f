package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Sockets keeps listening sockets from the end of a program to the start of the next one. Hosts
// that connect in between wait in the backlog instead of being refused. Any goroutine calls it.
type Sockets interface {
	// Take returns the kept socket at this address, which then belongs to the caller, or nil.
	Take(at netip.AddrPort) *os.File
	// Keep keeps a listening socket. The caller continues to use the descriptor.
	Keep(at netip.AddrPort, fd int)
	// Drop stops keeping a listening socket. The caller closes it afterwards.
	Drop(at netip.AddrPort, fd int)
}

// socket returns a listening socket and its actual address: a kept one, or else a new one, which is
// kept. A socket with a port chosen by the kernel is not kept, since the next process gets another
// port.
func (t *Transport) socket(addr netip.AddrPort) (fd int, bound netip.AddrPort, err error) {
	s := t.cfg.Sockets
	if s == nil || addr.Port() == 0 {
		return listen(addr, &t.cfg)
	}
	if f := s.Take(addr); f != nil {
		fd, err := adopt(f, addr, &t.cfg)
		if err == nil {
			return fd, addr, nil
		}
		t.cfg.Log.Info("a listening socket that was kept is replaced", "listener", addr, "err", err)
		_ = f.Close()
	}
	fd, bound, err = listen(addr, &t.cfg)
	if err == nil {
		s.Keep(addr, fd)
	}
	return fd, bound, err
}

// adopt sets the options of a kept socket as listen does for a new one with the current
// configuration. If the socket does not fit, adopt shuts it down, and the caller closes f.
func adopt(f *os.File, addr netip.AddrPort, c *Config) (fd int, err error) {
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate: %w", err)
	}
	if err = refit(fd, addr, c); err != nil {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // frees the address
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, f.Close()
}

func refit(fd int, addr netip.AddrPort, c *Config) error {
	name, err := unix.Getsockname(fd)
	switch {
	case err != nil:
		return fmt.Errorf("getsockname: %w", err)
	case addrPort(name) != addr:
		return fmt.Errorf("it is bound to %v", addrPort(name))
	}
	want := []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
		{unix.SOL_SOCKET, unix.SO_ACCEPTCONN, 1},
	}
	if addr.Addr().Is6() && addr.Addr().IsUnspecified() { // others are IPv6 only, once bound
		want = append(want,
			struct{ level, name, value int }{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0})
	}
	for _, o := range want {
		v, err := unix.GetsockoptInt(fd, o.level, o.name)
		switch {
		case err != nil:
			return fmt.Errorf("socket option %d of level %d: %w", o.name, o.level, err)
		case v != o.value:
			return fmt.Errorf("socket option %d of level %d is %d, not %d", o.name, o.level, v,
				o.value)
		}
	}
	if err := setInherited(fd, c); err != nil {
		return err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return unix.SetNonblock(fd, true)
}
