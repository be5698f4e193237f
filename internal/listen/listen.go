// Package listen opens listening TCP sockets, which may be kept for the next program, and accepts.
package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
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

// Options are the options of a Listener.
type Options struct {
	Sockets Sockets      // nil: the socket is not kept
	Log     *slog.Logger // gets errors of accepting
	// Set sets the options that accepted sockets inherit. A kept socket gets the current ones.
	Set func(fd int) error
	// Errors, unless it is nil, counts failures to accept, each followed by a pause.
	Errors *atomic.Uint64
}

// Listener is a listening socket.
type Listener struct {
	Addr netip.AddrPort // with the real port
	opt  Options
	kept bool
	fd   int
	file *os.File // of fd, in the runtime's poller

	ctx   context.Context // ends with Close
	close context.CancelFunc
	once  sync.Once
	err   error
}

const (
	backlog  = 4096 // the kernel caps it at net.core.somaxconn
	pauseMin = 5 * time.Millisecond
	pauseMax = time.Second
)

// Open opens a socket. The address may be a wildcard; [::] also accepts IPv4, regardless of
// net.ipv6.bindv6only. A link-local address needs its zone. A socket with a port chosen by the
// kernel is not kept, since the next process gets another port.
func Open(addr netip.AddrPort, o Options) (*Listener, error) {
	l := &Listener{opt: o, kept: o.Sockets != nil && addr.Port() != 0}
	var err error
	if l.fd, l.Addr, err = l.socket(addr); err != nil {
		return nil, explain(err)
	}
	l.file = os.NewFile(uintptr(l.fd), "tcp "+l.Addr.String())
	l.ctx, l.close = context.WithCancel(context.Background())
	return l, nil
}

// socket returns a listening socket and its actual address: a kept one, or else a new one, which is
// kept.
func (l *Listener) socket(addr netip.AddrPort) (fd int, bound netip.AddrPort, err error) {
	s := l.opt.Sockets
	if !l.kept {
		return l.opt.listen(addr)
	}
	if f := s.Take(addr); f != nil {
		fd, err := l.opt.adopt(f, addr)
		if err == nil {
			return fd, addr, nil
		}
		l.opt.Log.Info("a listening socket that was kept is replaced", "listener", addr, "err", err)
		_ = f.Close()
	}
	fd, bound, err = l.opt.listen(addr)
	if err == nil {
		s.Keep(addr, fd)
	}
	return fd, bound, err
}

// adopt sets the options of a kept socket as listen does for a new one with the current
// configuration. If the socket does not fit, adopt shuts it down, and the caller closes f.
func (o *Options) adopt(f *os.File, addr netip.AddrPort) (fd int, err error) {
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate: %w", err)
	}
	if err = o.refit(fd, addr); err != nil {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // frees the address
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, f.Close()
}

func (o *Options) refit(fd int, addr netip.AddrPort) error {
	name, err := unix.Getsockname(fd)
	switch {
	case err != nil:
		return fmt.Errorf("getsockname: %w", err)
	case AddrPort(name) != addr:
		return fmt.Errorf("it is bound to %v", AddrPort(name))
	}
	want := []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
		{unix.SOL_SOCKET, unix.SO_ACCEPTCONN, 1},
	}
	if addr.Addr().Is6() && addr.Addr().IsUnspecified() { // others are IPv6 only, once bound
		want = append(want,
			struct{ level, name, value int }{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0})
	}
	for _, w := range want {
		v, err := unix.GetsockoptInt(fd, w.level, w.name)
		switch {
		case err != nil:
			return fmt.Errorf("socket option %d of level %d: %w", w.name, w.level, err)
		case v != w.value:
			return fmt.Errorf("socket option %d of level %d is %d, not %d", w.name, w.level, v,
				w.value)
		}
	}
	if err := o.Set(fd); err != nil {
		return err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return unix.SetNonblock(fd, true)
}

// Probe returns the error with which Open would fail now, or nil. It binds a socket for a moment.
func Probe(addr netip.AddrPort, o Options) error {
	fd, err := o.bind(addr)
	if err != nil {
		return explain(err)
	}
	return unix.Close(fd)
}

// listen makes a listening socket and returns its actual address.
func (o *Options) listen(addr netip.AddrPort) (fd int, bound netip.AddrPort, err error) {
	if fd, err = o.bind(addr); err != nil {
		return -1, bound, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		_ = unix.Close(fd)
		return -1, bound, fmt.Errorf("listen: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, bound, fmt.Errorf("getsockname: %w", err)
	}
	return fd, AddrPort(name), nil
}

// bind makes a socket with the options that connections inherit, and binds it to addr.
func (o *Options) bind(addr netip.AddrPort) (fd int, err error) {
	sa, family, err := sockaddr(addr)
	if err != nil {
		return -1, err
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	fail := func(what string, err error) (int, error) {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", what, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fail("SO_REUSEADDR", err)
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			return fail("IPV6_V6ONLY", err)
		}
	}
	if err := o.Set(fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return fail("bind", err)
	}
	return fd, nil
}

// explain adds a hint to common errors.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w (raise LimitNOFILE= of the systemd unit, or ulimit -n)", err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: another process listens there (see ss -ltnp)", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface of this machine has that address now (see ip address)",
			err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: ports below 1024 need the capability CAP_NET_BIND_SERVICE", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: this kernel has no support for that address family", err)
	}
	return err
}

// Close closes the socket, also for the next program, and ends Accept.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.close()
		if l.kept {
			l.opt.Sockets.Drop(l.Addr, l.fd)
		}
		l.err = l.file.Close()
	})
	return l.err
}

// Accept calls serve with connections until Close. After a temporary error (no descriptors, no
// memory), of accept(2) or of serve, it pauses and tries again, and logs that once a minute.
func (l *Listener) Accept(serve func(fd int, peer unix.Sockaddr) error) {
	pause := pauseMin
	var logged time.Time
	for {
		fd, sa, err := l.next()
		if err == nil {
			err = serve(fd, sa)
		}
		switch {
		case err == nil:
			pause = pauseMin
			continue
		case l.ctx.Err() != nil:
			return
		case errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EINTR),
			errors.Is(err, unix.EPROTO):
			continue // the peer has given up
		}
		if l.opt.Errors != nil {
			l.opt.Errors.Add(1)
		}
		if time.Since(logged) >= time.Minute {
			logged = time.Now()
			l.opt.Log.Warn("accept failed, trying again", "listener", l.Addr, "err", explain(err))
		}
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, pauseMax)
	}
}

func (l *Listener) next() (fd int, sa unix.Sockaddr, err error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return -1, nil, err
	}
	waitErr := raw.Read(func(lfd uintptr) bool {
		fd, sa, err = unix.Accept4(int(lfd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return -1, nil, waitErr
	}
	return fd, sa, err
}

// sockaddr converts an address. A zone is the name or the index of an interface.
func sockaddr(a netip.AddrPort) (sa unix.Sockaddr, family int, err error) {
	addr := a.Addr().Unmap()
	switch {
	case addr.Is4():
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}, unix.AF_INET, nil
	case !addr.Is6():
		return nil, 0,
			errors.New("no address: give an IPv4 or IPv6 address, or a wildcard (0.0.0.0 or [::])")
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: addr.As16()}
	if addr.Zone() == "" && addr.IsLinkLocalUnicast() {
		return nil, 0,
			errors.New("a link-local address needs its interface: write it as address%interface")
	}
	s.ZoneId, err = sys.ZoneIndex(addr)
	return s, unix.AF_INET6, err
}

// AddrPort converts the address of a socket. Link-local addresses get the name of their interface
// as their zone, and IPv4 addresses on a socket of [::] have their IPv4 form.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch s := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(s.Addr).Unmap()
		if s.ZoneId != 0 {
			a = a.WithZone(sys.Zone(s.ZoneId))
		}
		return netip.AddrPortFrom(a, uint16(s.Port))
	}
	return netip.AddrPort{}
}
