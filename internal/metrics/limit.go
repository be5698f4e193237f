package metrics

import (
	"net"
	"sync"
)

// limited is a listener that keeps a limited number of connections open; more wait in the kernel's
// queue.
type limited struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func newLimited(l net.Listener, n int) *limited {
	return &limited{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// conn gives its slot back when it is closed.
type conn struct {
	net.Conn
	release func()
}

func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
