package mpa

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/internal/listen"
)

// channel is an event channel: a verbs.CM.
type channel struct {
	ids.Channel[QP]
	m *Manager
}

// NewCM opens a communication manager with its own event channel.
func (m *Manager) NewCM() (verbs.CM, error) {
	c := &channel{m: m, Channel: ids.Channel[QP]{Lock: &m.mu, Net: m.net, Dev: m.dev}}
	c.Make = func() verbs.ID { return c.newID() }
	c.Open()
	return c, nil
}

// ID is a verbs.ID: a listener or one connection.
type ID struct {
	ids.ID[QP]
	cm   *channel
	link *link // nil if the queue pair has no socket

	listener *listen.Listener // of a listener
	// of a request: the connection until it is accepted, the frame, and whether it counts for its
	// host.
	conn    net.Conn
	request *frame
	counted bool
	timer   *time.Timer // of the RTR
	// of a connection that is being made
	cancel context.CancelFunc
}

func (c *channel) newID() *ID {
	id := &ID{cm: c}
	id.Init(&c.Channel, id)
	return id
}

// connect gives the socket of a connection to the queue pair, and returns the rest of the work.
// m.mu is held.
func (id *ID) connect(c net.Conn, p Peer) error {
	if id.QP == nil {
		_ = c.Close()
		return fmt.Errorf("no queue pair: %w", unix.EINVAL)
	}
	fd, err := takeFD(c)
	if err != nil {
		return err
	}
	m, l := id.cm.m, &link{fd: fd}
	p.FD = fd
	p.First = func() { m.note(note{id: id}) }
	p.Ended = func(drain bool) { m.note(note{id: id, link: l, drain: drain}) }
	if err := id.QP.Of.Connect(p); err != nil {
		_ = unix.Close(fd)
		return err
	}
	id.link = l
	return nil
}

// ready notes that the first message of the peer has arrived. m.mu is held.
func (id *ID) ready() {
	if id.State != ids.Accepted {
		return
	}
	id.timer.Stop()
	id.establish(verbs.ConnParam{})
}

func (id *ID) establish(p verbs.ConnParam) {
	id.State = ids.Established
	id.uncount()
	id.Post(verbs.Event{Type: verbs.EventEstablished, Param: p})
}

// uncount ends the count of a connection that is not established.
func (id *ID) uncount() {
	if id.counted {
		id.counted = false
		id.cm.m.leave(ids.Plain(id.To.Addr()))
	}
}

// ended notes that the queue pair has given its socket back. m.mu is held.
func (id *ID) ended(l *link) {
	if id.link != l {
		return
	}
	id.link = nil
	switch id.State {
	case ids.Established:
		id.State = ids.Done
		id.Post(verbs.Event{Type: verbs.EventDisconnected})
	case ids.Accepted:
		id.timer.Stop()
		id.State = ids.Done
		id.uncount()
		id.Post(verbs.Event{Type: verbs.EventConnectError, Status: -int(unix.ECONNRESET)})
	}
}

// Disconnect makes the queue pair fail, which closes the connection.
func (id *ID) Disconnect() error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	id.Fail()
	return nil
}

// Drop implements ids.Dropper.
func (id *ID) Drop() {
	if id.listener != nil {
		_ = id.listener.Close()
	}
	id.Forget()
	if id.timer != nil {
		id.timer.Stop()
	}
	if id.cancel != nil {
		id.cancel()
	}
	if id.conn != nil {
		id.reply(&frame{flags: flagReject})
	}
	id.uncount()
	id.Fail()
	id.State = ids.Done
}
