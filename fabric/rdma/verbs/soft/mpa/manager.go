package mpa

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/listen"
)

// Device is the part of the soft device that connections need.
type Device interface {
	verbs.Device
	NewQP(pd verbs.PD, init verbs.QPInit) (QP, error)
}

// A QP is a queue pair to connect. The Manager calls it with its lock held.
type QP interface {
	verbs.QP
	// Connect gives the queue pair its socket. It fails if the queue pair is connected or in the
	// error state; the socket then remains the caller's.
	Connect(Peer) error
}

// A Peer is the other side of a connection, and the agreement with it.
type Peer struct {
	// FD is the TCP socket. The queue pair gives it back with Ended.
	FD int
	// Active reports whether this side has sent the request. The passive side sends nothing before
	// the first message of the active one has arrived (RFC 5044, section 7.1.3).
	Active bool
	// RTR is the first message of the active side, if both have agreed on one.
	RTR RTR
	// CRC reports whether FPDUs have checksums, Large whether they may be larger than a segment.
	CRC, Large bool
	// ResponderResources bounds the RDMA READs to serve at once, InitiatorDepth the ones to issue.
	ResponderResources, InitiatorDepth uint8
	// First is called once, when the first message of the peer has arrived on the passive side.
	// Ended is called once, when the queue pair gives its socket back, as every queue pair does.
	// drain reports whether the peer may not have received everything. Both functions neither
	// block nor call the queue pair.
	First func()
	Ended func(drain bool)
}

// Options are times and choices. Zero values mean the defaults.
type Options struct {
	// SetupTime is the time for the request or reply of a peer, and for its RTR. Default 10 s, as
	// in siw (MPAREQ_TIMEOUT in drivers/infiniband/sw/siw/siw_cm.h).
	SetupTime time.Duration
	// DrainTime is the time that a closed connection is drained. Default 1 s.
	DrainTime time.Duration
	// SendTime is the time after which a connection to a peer that does not receive, or does not
	// answer probes, ends (TCP_USER_TIMEOUT in tcp(7)). Default 30 s.
	SendTime time.Duration
	// CRC makes the active side ask for checksums. The passive side uses them if the peer asks.
	CRC bool
	// RTR makes the active side offer RTR messages.
	RTR bool
	// Sockets keeps the listening sockets for the next program. Default: none.
	Sockets listen.Sockets
	// Log gets errors of listeners. Default: none.
	Log *slog.Logger
}

func (o *Options) setDefaults() {
	o.SetupTime = cmp.Or(o.SetupTime, 10*time.Second)
	o.DrainTime = cmp.Or(o.DrainTime, time.Second)
	o.SendTime = cmp.Or(o.SendTime, 30*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
}

// Stats are the counters of a Manager.
type Stats struct {
	Accepted atomic.Uint64 // TCP connections of peers
	Requests atomic.Uint64 // of them, with a request
	Invalid  atomic.Uint64 // of them, with something else, or nothing in time
	Refused  atomic.Uint64 // requests refused without asking the program
	Dropped  atomic.Uint64 // connections beyond a limit
	// AcceptErrors counts failures of accept, each followed by a pause.
	AcceptErrors atomic.Uint64
}

// A Manager is the connection manager of a machine. Any goroutine may call its methods.
type Manager struct {
	net   wire.Network // for Addrs and Route
	dev   Device
	opt   Options
	stats Stats

	running sync.WaitGroup
	ctx     context.Context // of connections being made; ends with Close
	cancel  context.CancelFunc
	wake    chan struct{} // has room for one: there is something in noted

	mu      sync.Mutex
	closed  bool
	half    []net.Conn // without a request, the oldest first
	hosts   map[netip.Addr]int
	drained map[*os.File]struct{}

	// noteMu is held for a moment by engines, which must not wait for mu.
	noteMu sync.Mutex
	noted  []note
}

// A note is left by the engine of a queue pair for the goroutine of the Manager.
type note struct {
	id    *ID
	link  *link
	drain bool
}

// A link is the use of a socket by a queue pair.
type link struct{ fd int }

// New makes a Manager and starts its goroutine.
func New(net wire.Network, dev Device, opt Options) *Manager {
	opt.setDefaults()
	m := &Manager{
		net: net, dev: dev, opt: opt, wake: make(chan struct{}, 1),
		hosts: make(map[netip.Addr]int), drained: make(map[*os.File]struct{}),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.running.Go(m.run)
	return m
}

// Close ends the goroutines. Every ID has been destroyed.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	for _, c := range m.half {
		_ = c.Close()
	}
	for f := range m.drained {
		_ = f.SetReadDeadline(time.Now())
	}
	m.mu.Unlock()
	m.cancel()
	m.running.Wait()
	return nil
}

// Stats returns the counters.
func (m *Manager) Stats() *Stats { return &m.stats }

// run handles the notes of engines.
func (m *Manager) run() {
	for {
		m.takeNotes()
		select {
		case <-m.wake:
		case <-m.ctx.Done():
			m.takeNotes()
			return
		}
	}
}

func (m *Manager) note(n note) {
	m.noteMu.Lock()
	m.noted = append(m.noted, n)
	m.noteMu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Manager) takeNotes() {
	m.noteMu.Lock()
	list := m.noted
	m.noted = nil
	m.noteMu.Unlock()
	for _, n := range list {
		m.mu.Lock()
		if n.link == nil {
			n.id.ready()
		} else {
			m.drain(n.link.fd, n.drain)
			n.id.ended(n.link)
		}
		m.mu.Unlock()
	}
}

// drain closes a socket. The bytes sent last would be lost if bytes of the peer arrived afterwards
// (RFC 1122, section 4.2.2.13), so for a while the socket is read. m.mu is held.
func (m *Manager) drain(fd int, drain bool) {
	if !drain || m.closed || len(m.drained) >= maxDrained ||
		unix.Shutdown(fd, unix.SHUT_WR) != nil || unix.SetNonblock(fd, true) != nil {
		_ = unix.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "iWARP connection")
	_ = f.SetReadDeadline(time.Now().Add(m.opt.DrainTime))
	m.drained[f] = struct{}{}
	m.running.Go(func() {
		_, _ = io.CopyN(io.Discard, f, drainBytes)
		m.mu.Lock()
		delete(m.drained, f)
		m.mu.Unlock()
		_ = f.Close()
	})
}

// control sets the options of a socket that connects.
func (m *Manager) control(_, _ string, c syscall.RawConn) (err error) {
	call := c.Control(func(fd uintptr) { err = m.setOptions(int(fd)) })
	return errors.Join(call, err)
}

// setOptions sets the options of a socket; accepted sockets inherit them.
func (m *Manager) setOptions(fd int) error {
	return os.NewSyscallError("setsockopt", errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(m.opt.SendTime.Milliseconds()))))
}

// keepAlive ends connections to peers that have disappeared. After SendTime without a packet, the
// first probe without an answer ends a connection (tcp_keepalive_timer in net/ipv4/tcp_timer.c), so
// there are several probes before.
func (m *Manager) keepAlive() net.KeepAliveConfig {
	t := m.opt.SendTime
	return net.KeepAliveConfig{Enable: true, Idle: t / 2, Interval: t / 10}
}

// takeFD returns the descriptor of a connection and closes the connection, without a message.
func takeFD(c net.Conn) (fd int, err error) {
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	call := raw.Control(func(n uintptr) {
		fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0)
	})
	if call != nil {
		return -1, call
	}
	return fd, err
}
