package mpa

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/internal/listen"
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
	l, err := listen.Open(addr, listen.Options{
		Sockets: m.opt.Sockets, Log: m.opt.Log, Set: m.setOptions, Errors: &m.stats.AcceptErrors,
	})
	if err != nil {
		return fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Closed {
		_ = l.Close()
		return fail(verbs.ErrClosed)
	}
	id := c.newID()
	id.listener = l
	id.Listen(netip.AddrPortFrom(addr.Addr(), l.Addr.Port()), backlog)
	m.running.Go(func() {
		l.Accept(func(fd int, _ unix.Sockaddr) error { return m.accept(id, fd, tos) })
	})
	return id, nil
}

// accept takes a connection. The socket of the listener has no configuration of keep-alive probes.
// It fails if there is no descriptor left.
func (m *Manager) accept(l *ID, fd int, tos uint8) error {
	f := os.NewFile(uintptr(fd), "")
	c, err := net.FileConn(f) // a duplicate
	_ = f.Close()
	if err != nil {
		return err
	}
	m.stats.Accepted.Add(1)
	if c.RemoteAddr() == nil { // the peer has reset it: getpeername(2) fails
		m.stats.Invalid.Add(1)
		_ = c.Close()
		return nil
	}
	_ = c.(*net.TCPConn).SetKeepAliveConfig(m.keepAlive())
	m.mu.Lock()
	ok := m.admit(c)
	m.mu.Unlock()
	if !ok {
		_ = c.Close()
		return nil
	}
	setTOS(c, tos)
	m.running.Go(func() { m.serve(l, c) })
	return nil
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
	if err := id.Check("accept", &p, userPrivate, id.State == ids.Requested && id.QP != nil,
		"request, or no queue pair"); err != nil {
		return err
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
	if err := id.Check("reject", &verbs.ConnParam{PrivateData: private}, userPrivate,
		id.State == ids.Requested, "request"); err != nil {
		return err
	}
	id.reply(&frame{flags: flagReject, private: private})
	id.State = ids.Done
	id.uncount()
	return nil
}
