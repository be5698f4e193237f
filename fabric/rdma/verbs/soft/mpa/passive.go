package mpa

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
)

// Listen opens a TCP socket.
func (c *channel) Listen(addr netip.AddrPort, backlog int, tos uint8) (verbs.ID, error) {
	m := c.m
	fail := func(err error) (verbs.ID, error) {
		return nil, fmt.Errorf("listen at %v: %w", addr, err)
	}
	if err := c.Usable(addr.Addr()); err != nil {
		return fail(err)
	}
	l, err := m.listen(addr)
	if err != nil {
		return fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Closed {
		m.closeListener(l)
		return fail(verbs.ErrClosed)
	}
	id := c.newID()
	id.listener = l
	id.Listen(netip.AddrPortFrom(addr.Addr(), addrPort(l.Addr()).Port()), backlog)
	m.running.Go(func() { m.accept(id, tos) })
	return id, nil
}

// Sockets keeps listening sockets from the end of a program to the start of the next one, as
// tcp.Sockets describes. Any goroutine calls it.
type Sockets interface {
	Take(at netip.AddrPort) *os.File
	Keep(at netip.AddrPort, fd int)
	Drop(at netip.AddrPort, fd int)
}

// A listener is a listening socket.
type listener struct {
	*net.TCPListener
	kept bool
}

// listen returns a kept socket, or a new one, which is kept unless the system chooses its port.
func (m *Manager) listen(addr netip.AddrPort) (l listener, err error) {
	l.kept = m.opt.Sockets != nil && addr.Port() != 0
	if l.kept {
		if l.TCPListener = m.adopt(m.opt.Sockets.Take(addr)); l.TCPListener != nil {
			return l, nil
		}
	}
	network := "tcp" // :: takes IPv4 as well
	if addr.Addr().Is4() {
		network = "tcp4"
	}
	config := net.ListenConfig{Control: m.control}
	config.SetMultipathTCP(false)
	opened, err := config.Listen(m.ctx, network, addr.String())
	if err != nil {
		return l, err
	}
	l.TCPListener = opened.(*net.TCPListener)
	if l.kept {
		l.withFD(func(fd int) { m.opt.Sockets.Keep(addr, fd) })
	}
	return l, nil
}

// adopt returns the listener of a kept socket, with the options of a new one, or nil.
func (m *Manager) adopt(f *os.File) *net.TCPListener {
	if f == nil {
		return nil
	}
	defer f.Close()
	opened, err := net.FileListener(f) // a duplicate
	if err == nil {
		if l, ok := opened.(*net.TCPListener); ok {
			if raw, err := l.SyscallConn(); err == nil && m.control("", "", raw) == nil {
				return l
			}
		}
		_ = opened.Close()
	}
	_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR) // frees the address
	return nil
}

// closeListener closes a listening socket, also for the next program.
func (m *Manager) closeListener(l listener) {
	if l.kept {
		l.withFD(func(fd int) { m.opt.Sockets.Drop(addrPort(l.Addr()), fd) })
	}
	_ = l.Close()
}

func (l listener) withFD(fn func(fd int)) {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { fn(int(fd)) })
	}
}

// The pause after an error doubles, up to the maximum, as in fabric/tcp.
const (
	pauseMin = 5 * time.Millisecond
	pauseMax = time.Second
)

// accept accepts TCP connections until the listener is closed. After a temporary error (no
// descriptors, no memory) it pauses and tries again, and logs that once a minute.
func (m *Manager) accept(l *ID, tos uint8) {
	pause := pauseMin
	var logged time.Time
	for {
		c, err := l.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, unix.EINVAL): // accept(2): shut down
			return
		case err != nil:
			m.stats.AcceptErrors.Add(1)
			if errors.Is(err, unix.EMFILE) {
				err = fmt.Errorf("%w (raise LimitNOFILE= of the systemd unit, or ulimit -n)", err)
			}
			if time.Since(logged) >= time.Minute {
				logged = time.Now()
				m.opt.Log.Warn("accept failed, trying again", "listener", l.listener.Addr(),
					"err", err)
			}
			select {
			case <-time.After(pause):
			case <-m.ctx.Done():
				return
			}
			pause = min(2*pause, pauseMax)
			continue
		}
		pause = pauseMin
		m.stats.Accepted.Add(1)
		_ = c.SetKeepAliveConfig(m.keepAlive()) // a kept listener has no configuration for it
		m.mu.Lock()
		ok := m.admit(c)
		m.mu.Unlock()
		if !ok {
			_ = c.Close()
			continue
		}
		setTOS(c, tos)
		m.running.Go(func() { m.serve(l, c) })
	}
}

// setTOS sets the type of service of a connection.
func setTOS(c net.Conn, tos uint8) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if tos == 0 || err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if remoteAddr(c).Is4() {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, int(tos))
		} else {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(tos))
		}
	})
}

// serve waits for the request of a connection and tells the listener.
func (m *Manager) serve(l *ID, c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(m.opt.SetupTime))
	f, err := readFrame(c, requestKey)
	_ = c.SetDeadline(time.Time{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived(c)
	refuse := func(counter interface{ Add(uint64) uint64 }) {
		counter.Add(1)
		m.leave(remoteAddr(c))
		_ = c.Close()
	}
	switch {
	case err != nil:
		refuse(&m.stats.Invalid)
		return
	case f.is(flagMarkers): // as siw
		r := &frame{revision: f.revision, flags: flagReject | f.flags&flagEnhanced}
		_, _ = c.Write(r.encode(replyKey))
		refuse(&m.stats.Refused)
		return
	case l.Destroyed:
		refuse(&m.stats.Refused)
		return
	case l.Full():
		refuse(&m.stats.Dropped)
		return
	}
	m.stats.Requests.Add(1)
	id := l.cm.newID()
	id.counted, id.conn, id.request = true, c, f
	ird, ord := f.depths()
	id.Request(&l.ID, addrPort(c.LocalAddr()), addrPort(c.RemoteAddr()), verbs.ConnParam{
		PrivateData: f.private, ResponderResources: ord, InitiatorDepth: ird,
	})
}

// reply answers the request. The frame has flags, depths and private data. The buffer of a new
// connection has room for it.
func (id *ID) reply(f *frame) {
	q := id.request
	f.revision, f.flags = q.revision, f.flags|q.flags&(flagEnhanced|flagCRC|flagLarge)
	_, _ = id.conn.Write(f.encode(replyKey)) // an error ends the connection
	if f.is(flagReject) {
		_ = id.conn.Close()
	}
	id.conn = nil
}

// Accept sends a reply.
func (id *ID) Accept(p verbs.ConnParam) error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.State != ids.Requested || id.QP == nil {
		return fmt.Errorf("accept %v: no request, or no queue pair: %w", id.To, unix.EINVAL)
	}
	if err := id.Check(&p, userPrivate); err != nil {
		return fmt.Errorf("accept %v: %w", id.To, err)
	}
	q := id.request
	ird, ord := q.depths()
	f := &frame{private: p.PrivateData}
	peer := Peer{
		RTR: q.rtr(), CRC: q.is(flagCRC), Large: q.is(flagLarge),
		ResponderResources: p.ResponderResources, InitiatorDepth: min(p.InitiatorDepth, ird),
	}
	if peer.RTR == RTRRead {
		peer.ResponderResources = max(peer.ResponderResources, 1)
	}
	f.ird = uint16(min(peer.ResponderResources, max(ord, 1)))
	f.ord = uint16(peer.InitiatorDepth)
	f.setRTR(peer.RTR)
	c := id.conn
	id.reply(f)
	if err := id.connect(c, peer); err != nil {
		id.State = ids.Done
		id.uncount()
		return fmt.Errorf("accept %v: %w", id.To, err)
	}
	if peer.RTR == NoRTR {
		id.establish(verbs.ConnParam{})
		return nil
	}
	id.State = ids.Accepted
	id.timer = time.AfterFunc(m.opt.SetupTime, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if id.State == ids.Accepted {
			id.Fail()
		}
	})
	return nil
}

// Reject sends a reply that refuses the request.
func (id *ID) Reject(private []byte) error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case id.State != ids.Requested:
		return fmt.Errorf("reject %v: no request: %w", id.To, unix.EINVAL)
	case len(private) > userPrivate:
		return fmt.Errorf("reject %v: %d bytes of private data, at most %d: %w", id.To,
			len(private), userPrivate, unix.EINVAL)
	}
	id.reply(&frame{flags: flagReject, private: private})
	id.State = ids.Done
	id.uncount()
	return nil
}
