package listeners

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Sockets are the listening sockets that the service manager keeps while the target is restarted
// (FileDescriptorStoreMax= in systemd.service(5)), see ADR 0047. It implements listen.Sockets and
// wire.Sockets.
type Sockets struct {
	log    *slog.Logger
	notify func(state string, fds ...int) error
	// Requests is called with true when all configured listeners are open, and with false before
	// they are closed for the next process; nil: not called.
	Requests func(on bool)

	mu sync.Mutex // guards the rest; held while the service manager is notified
	// before has the sockets kept since the previous process and not taken yet, by stored name.
	before map[string]*os.File
	// held has duplicates of the sockets that are kept, by stored name, for Files.
	held   map[string]int
	memory *os.File // see Memory
	ending bool
}

// SystemdSockets returns the Sockets of systemd. files are the sockets that it has kept since the
// previous process. It returns nil without systemd: other service managers that take notifications,
// such as container engines, keep no descriptors.
func SystemdSockets(log *slog.Logger, files []*os.File) *Sockets {
	if os.Getenv("NOTIFY_SOCKET") == "" || os.Getenv("INVOCATION_ID") == "" { // systemd.exec(5)
		return nil
	}
	return NewSockets(log, files, notifyWith)
}

// NewSockets returns Sockets kept in files, which it owns. notify talks to the service manager.
func NewSockets(log *slog.Logger, files []*os.File,
	notify func(state string, fds ...int) error,
) *Sockets {
	s := &Sockets{
		log: log, notify: notify, before: map[string]*os.File{}, held: map[string]int{},
	}
	for _, f := range files {
		if f.Name() == memoryName {
			s.memory = f
			continue
		}
		name, err := nameOf(f)
		if err == nil && s.before[name] != nil {
			err = fmt.Errorf("it is a second %s", name)
		}
		if err != nil {
			log.Warn("a descriptor of the service manager is not used", "err", err)
			_ = f.Close()
			continue
		}
		s.before[name] = f
	}
	return s
}

// nameOf returns the name of a listening TCP socket, or of a UDP socket.
func nameOf(f *os.File) (string, error) {
	if c, err := net.FilePacketConn(f); err == nil {
		_ = c.Close() // a duplicate
		a, ok := c.LocalAddr().(*net.UDPAddr)
		if !ok {
			return "", fmt.Errorf("it is bound to %v, not to UDP", c.LocalAddr())
		}
		return storedName(udp, a.AddrPort()), nil
	}
	l, err := net.FileListener(f)
	if err != nil {
		return "", err
	}
	defer l.Close() // a duplicate
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return "", fmt.Errorf("it listens at %v, not on TCP", l.Addr())
	}
	if v, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); v == 0 {
		return "", errors.Join(fmt.Errorf("the socket of %v does not listen", a), err)
	}
	return storedName(tcp, a.AddrPort()), nil
}

// Take implements listen.Sockets, TakeUDP wire.Sockets.
func (s *Sockets) Take(at netip.AddrPort) *os.File    { return s.take(storedName(tcp, at)) }
func (s *Sockets) TakeUDP(at netip.AddrPort) *os.File { return s.take(storedName(udp, at)) }

// KeptUDP reports whether there are UDP sockets that were not taken yet.
func (s *Sockets) KeptUDP() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.before {
		if strings.HasPrefix(name, udp) {
			return true
		}
	}
	return false
}

func (s *Sockets) take(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.before[name]
	delete(s.before, name)
	if f != nil {
		s.hold(name, int(f.Fd()))
	}
	return f
}

// hold replaces the duplicate of a socket; fd -1 only closes it. s.mu is held.
func (s *Sockets) hold(name string, fd int) {
	if old, ok := s.held[name]; ok {
		delete(s.held, name)
		_ = unix.Close(old)
	}
	if fd < 0 {
		return
	}
	if d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		s.held[name] = d
	}
}

// Files returns the descriptors that the service manager keeps, with their names. They belong to s.
func (s *Sockets) Files() (names []string, fds []uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, fd := range s.held {
		names, fds = append(names, name), append(fds, uintptr(fd))
	}
	if s.memory != nil {
		names, fds = append(names, memoryName), append(fds, s.memory.Fd())
	}
	return names, fds
}

// Keep implements listen.Sockets, KeepUDP wire.Sockets.
func (s *Sockets) Keep(at netip.AddrPort, fd int)    { s.keep(storedName(tcp, at), fd) }
func (s *Sockets) KeepUDP(at netip.AddrPort, fd int) { s.keep(storedName(udp, at), fd) }

func (s *Sockets) keep(name string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ending {
		s.hold(name, fd)
		s.tell("FDSTORE=1\nFDNAME="+name, fd)
	}
}

// Drop implements listen.Sockets. After end it does nothing. The socket is shut down, so that
// nobody can connect to it even if the service manager keeps it.
func (s *Sockets) Drop(at netip.AddrPort, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return
	}
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	s.forget(storedName(tcp, at))
}

// DropUDP implements wire.Sockets.
func (s *Sockets) DropUDP(at netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(storedName(udp, at))
}

// forget ends the keeping of a socket. s.mu is held.
func (s *Sockets) forget(name string) {
	s.hold(name, -1)
	s.tell("FDSTOREREMOVE=1\nFDNAME=" + name)
}

// memoryName is the name of the memory in the store.
const memoryName = "memory"

// Memory returns memory that the next process gets as this one has left it. There is one; another
// call returns it again. If there is none, it returns nil.
func (s *Sockets) Memory(size int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.mapMemory(size)
	if err != nil {
		s.log.Warn("hosts of RoCE without a device will not notice at once if the target crashes",
			"err", err)
	}
	return b
}

func (s *Sockets) mapMemory(size int) ([]byte, error) {
	if s.memory == nil {
		fd, err := unix.MemfdCreate(memoryName, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
		if errors.Is(err, unix.EINVAL) { // before Linux 6.3
			fd, err = unix.MemfdCreate(memoryName, unix.MFD_CLOEXEC)
		}
		if err != nil {
			return nil, fmt.Errorf("memfd_create: %w", err)
		}
		s.memory = os.NewFile(uintptr(fd), memoryName)
		s.tell("FDSTORE=1\nFDNAME="+memoryName, fd)
	}
	if err := s.memory.Truncate(int64(size)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(s.memory.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	return b, os.NewSyscallError("mmap", err)
}

// DropOthers drops the kept listening sockets that no listener has taken, because the configuration
// has changed since, except at the addresses in keep.
func (s *Sockets) DropOthers(keep map[netip.AddrPort]bool) {
	names := map[string]bool{}
	for at := range keep {
		names[storedName(tcp, at)] = true
	}
	s.drop(func(name string) bool { return strings.HasPrefix(name, udp) || names[name] })
}

// Started drops the kept sockets that nobody has taken, after all listeners were opened.
func (s *Sockets) Started() {
	s.drop(func(string) bool { return false })
	if s.Requests != nil {
		s.Requests(true)
	}
}

func (s *Sockets) drop(except func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.before {
		if except(name) {
			continue
		}
		delete(s.before, name)
		_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR)
		_ = f.Close()
		s.tell("FDSTOREREMOVE=1\nFDNAME=" + name)
		s.log.Info("a listening socket that was kept is closed: no listener has its address",
			"listener", name)
	}
}

// end leaves the sockets to the next program.
func (s *Sockets) end() {
	if s.Requests != nil {
		s.Requests(false)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for name := range s.held {
		s.hold(name, -1)
	}
}

func (s *Sockets) tell(state string, fds ...int) {
	if err := s.notify(state, fds...); err != nil {
		s.log.Warn("cannot notify the service manager", "err", err)
	}
}

// Networks of sockets.
const (
	tcp = "tcp-"
	udp = "udp-"
)

// storedName returns a name for the store, without colons (sd_pid_notify_with_fds(3)).
func storedName(network string, at netip.AddrPort) string {
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	return network + strings.ReplaceAll(at.String(), ":", "_")
}

// notifyWith sends a state with descriptors to the service manager (sd_pid_notify_with_fds(3)).
func notifyWith(state string, fds ...int) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	to := &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}
	err = unix.Sendmsg(s, []byte(state), unix.UnixRights(fds...), to, 0)
	return errors.Join(err, unix.Close(s))
}
