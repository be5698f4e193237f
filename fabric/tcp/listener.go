package tcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/listen"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// listener accepts on its own goroutine, which waits in the runtime's poller.
type listener struct {
	t      *Transport
	addr   fabric.Addr
	portID uint16
	socket *listen.Listener
	accept func(fabric.Conn)
	done   chan struct{} // closed when the goroutine has returned
}

// Listen opens a port. The address may be a wildcard; [::] also accepts IPv4, regardless of
// net.ipv6.bindv6only. A link-local address needs its zone. accept must adopt or close each
// connection; Close waits for it to return.
func (t *Transport) Listen(addr fabric.Addr, portID uint16,
	accept func(fabric.Conn),
) (fabric.Listener, error) {
	if err := openssl.Supported(); err != nil && t.tlsPolicy(portID) != fabric.TLSOff {
		return nil, fmt.Errorf("listen on tcp %v: %w", addr.AddrPort, err)
	}
	s, err := listen.Open(addr.AddrPort, t.cfg.listen())
	if err != nil {
		return nil, fmt.Errorf("listen on tcp %v: %w", addr.AddrPort, err)
	}
	l := &listener{
		t: t, addr: fabric.Addr{Transport: nvme.TransportTCP, AddrPort: s.Addr}, portID: portID,
		socket: s, accept: accept, done: make(chan struct{}),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errors.Join(fmt.Errorf("listen on tcp %v: %w", addr.AddrPort, net.ErrClosed),
			s.Close())
	}
	t.listeners[l] = struct{}{}
	go func() {
		defer close(l.done)
		s.Accept(func(fd int, sa unix.Sockaddr) error { l.serve(fd, sa); return nil })
	}()
	return l, nil
}

// listen returns the options of the transport's sockets.
func (c *Config) listen() listen.Options {
	return listen.Options{Sockets: c.Sockets, Log: c.Log, Set: c.setInherited}
}

// Probe returns the error with which Listen would fail now, or nil. It binds a socket for a moment.
func Probe(addr netip.AddrPort, c *Config) error { return listen.Probe(addr, c.listen()) }

// tlsPolicy returns the policy for new connections of a listener.
func (t *Transport) tlsPolicy(portID uint16) fabric.TLSPolicy {
	if t.cfg.TLS == nil {
		return fabric.TLSOff
	}
	return t.cfg.TLS(portID)
}

// inherited are options that accepted sockets inherit. TCP keep-alive detects vanished hosts
// without a keep-alive timer. The kernel tunes the sizes of the socket buffers.
var inherited = []struct {
	level, name, value int
	what               string
}{
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, "TCP_NODELAY"},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1, "SO_KEEPALIVE"},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60, "TCP_KEEPIDLE"},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 10, "TCP_KEEPINTVL"},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 6, "TCP_KEEPCNT"},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0, "TCP_USER_TIMEOUT"}, // of a kept iWARP socket
}

func (c *Config) setInherited(fd int) error {
	for _, o := range inherited {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
	}
	if err := setCongestionControl(fd, c.CongestionControl); err != nil {
		return fmt.Errorf("TCP_CONGESTION: %w", err)
	}
	return nil
}

// setCongestionControl sets the congestion control of the connections; "" leaves the system's.
func setCongestionControl(fd int, name string) error {
	if name == "" {
		return nil
	}
	err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%q needs the capability CAP_NET_ADMIN, or to be in sysctl "+
			"net.ipv4.tcp_allowed_congestion_control", name)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%q is not in sysctl net.ipv4.tcp_available_congestion_control", name)
	}
	return err
}

// Addr is the address listened on, with the real port.
func (l *listener) Addr() fabric.Addr { return l.addr }

// Close stops accepting and waits until the accept function has returned for the last time.
func (l *listener) Close() error {
	err := l.socket.Close()
	<-l.done
	l.t.mu.Lock()
	delete(l.t.listeners, l)
	l.t.mu.Unlock()
	return err
}

// serve passes an accepted and admitted socket to the accept function.
func (l *listener) serve(fd int, peer unix.Sockaddr) {
	c := &conn{t: l.t, fd: fd, accepted: time.Now(), info: fabric.QueueInfo{
		Transport: nvme.TransportTCP, Remote: listen.AddrPort(peer), PortID: l.portID, QID: -1,
		CNTLID:   nvme.CNTLIDDynamic,
		MaxDepth: l.t.next.Load().MaxDepth, InCapsuleSize: l.t.cfg.InCapsuleSize, MSDBD: 1,
	}}
	c.tls = l.t.tlsPolicy(l.portID)
	if err := c.admit(); err != nil {
		_ = unix.Close(fd)
		l.t.log.Peer(c.info.Remote).Report(event.ConnectionRefused, "listener", l.addr, "err", err)
		return
	}
	name, err := unix.Getsockname(fd)
	if err != nil { // the peer has already closed it
		_ = c.Close()
		return
	}
	c.info.Local = listen.AddrPort(name)
	l.accept(c)
}

// conn is an accepted connection.
type conn struct {
	t        *Transport
	fd       int
	accepted time.Time
	info     fabric.QueueInfo
	counted  *admission.Conn
	tls      fabric.TLSPolicy // TLSOff once TLS is known to be unused
	closed   sync.Once
	links    atomic.Int32 // calls of link that use fd; plus linksClosed after Close

	group   atomic.Pointer[Group] // the group that adopts it
	evicted atomic.Bool
	q       *queue // reactor only; once adopted, its queue frees the memory
}

// admit counts the connection, with the memory that every queue needs.
func (c *conn) admit() (err error) {
	n := int64(queueBytes)
	if c.tls != fabric.TLSOff {
		n += tls.Memory
	}
	c.counted, err = c.t.admission.AdmitWait(c.info.Remote.Addr(), n, c.evict)
	return err
}

// evict ends the connection, because another one takes its place. Any goroutine may call it, at any
// time between admit and the end of the connection.
func (c *conn) evict(reason error) {
	c.evicted.Store(true) // Group.adopt checks it after Adopt has set the group
	if g := c.group.Load(); g != nil {
		g.loop.Post(func() {
			if c.q != nil {
				c.q.end(reason)
			}
		})
	}
}

// Info describes the connection.
func (c *conn) Info() *fabric.QueueInfo { return &c.info }

// CPU is the processor on which the last packet of the connection arrived, or -1 if that is
// meaningless: a host on this machine sends from the CPU it runs on.
func (c *conn) CPU() int {
	if c.info.Local.Addr() == c.info.Remote.Addr() {
		return -1
	}
	cpu, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_INCOMING_CPU)
	if err != nil {
		return -1
	}
	return cpu
}

// linksClosed is added to links by Close. It exceeds any number of concurrent calls of link.
const linksClosed = 1 << 24

// link asks the kernel about the connection. Any goroutine may call it: a socket that is closed in
// the meantime stays open until the kernel has answered, so the descriptor cannot belong to another
// connection.
func (c *conn) link() (l fabric.Link, ok bool) {
	for n := c.links.Load(); ; n = c.links.Load() {
		if n >= linksClosed {
			return l, false
		}
		if c.links.CompareAndSwap(n, n+1) {
			break
		}
	}
	defer func() {
		if c.links.Add(-1) == linksClosed {
			_ = unix.Close(c.fd)
		}
	}()
	i, err := unix.GetsockoptTCPInfo(c.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return l, false
	}
	return fabric.Link{
		Retransmits: uint64(i.Total_retrans), RTT: time.Duration(i.Rtt) * time.Microsecond,
	}, true
}

// Close closes the socket. Further calls do nothing.
func (c *conn) Close() error {
	var err error
	c.closed.Do(func() {
		if c.links.Add(linksClosed) == linksClosed {
			err = unix.Close(c.fd)
		} // else link does
		c.counted.Leave()
		if c.q == nil {
			c.counted.Uncharge()
		}
	})
	return err
}

var _ fabric.CPUConn = (*conn)(nil)
