package cm

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
)

// channel is an event channel: a verbs.CM.
type channel struct {
	ids.Channel[QP]
	m *Manager
}

// NewCM opens a communication manager with its own event channel.
func (m *Manager) NewCM() (verbs.CM, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	c := &channel{m: m, Channel: ids.Channel[QP]{
		Lock: &m.mu, Net: m.net, Dev: m.dev, Port: ephemeralPort,
	}}
	c.Make = func() verbs.ID { return c.newID() }
	c.Open()
	return c, nil
}

// ID is a verbs.ID: a listener or one connection.
type ID struct {
	ids.ID[QP]
	cm   *channel
	conn *conn
}

func (c *channel) newID() *ID {
	id := &ID{cm: c}
	id.Init(&c.Channel, id)
	return id
}

// ephemeral is the first port that is chosen for a program.
const ephemeral = 49152

func ephemeralPort() uint16 { return uint16(ephemeral + random64()%(1<<16-ephemeral)) }

func (c *channel) Listen(addr netip.AddrPort, backlog int, _ uint8) (verbs.ID, error) {
	m := c.m
	fail := func(err error) (verbs.ID, error) {
		return nil, fmt.Errorf("listen at %v: %w", addr, err)
	}
	a := addr.Addr()
	if err := c.Usable(a); err != nil {
		return fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Closed {
		return fail(verbs.ErrClosed)
	}
	taken := func(port uint16) bool {
		return slices.ContainsFunc(m.listeners, func(l *ID) bool {
			return l.From.Port() == port && (takes(l.From.Addr(), a) || takes(a, l.From.Addr()))
		})
	}
	port := addr.Port()
	for try := 0; addr.Port() == 0 && (try == 0 || taken(port)) && try < 1000; try++ {
		port = ephemeralPort()
	}
	if taken(port) {
		return fail(unix.EADDRINUSE)
	}
	id := c.newID()
	id.Listen(netip.AddrPortFrom(a, port), backlog)
	m.listeners = append(m.listeners, id)
	return id, nil
}

// takes reports whether a listener gets the requests for an address. :: takes IPv4 as well.
func takes(listen, to netip.Addr) bool {
	listen, to = ids.Plain(listen), ids.Plain(to)
	return listen == to || listen.IsUnspecified() && (listen.Is6() || to.Is4())
}

// listener finds the ID that listens at an address, rather a specific one than a wildcard.
func (m *Manager) listener(to netip.AddrPort) (found *ID) {
	for _, l := range m.listeners {
		if l.From.Port() == to.Port() && takes(l.From.Addr(), to.Addr()) &&
			(found == nil || found.From.Addr().IsUnspecified()) {
			found = l
		}
	}
	return found
}

func (id *ID) Disconnect() error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	id.Fail()
	if c := id.conn; c != nil {
		switch c.state {
		case established:
			c.disconnect()
		case dreqReceived:
			c.release()
		}
		m.flush()
	}
	return nil
}

// Drop implements ids.Dropper.
func (id *ID) Drop() {
	m := id.cm.m
	m.listeners = slices.DeleteFunc(m.listeners, func(l *ID) bool { return l == id })
	id.Forget()
	if id.conn != nil {
		id.conn.drop()
	}
	m.flush()
}
