package httpd

import (
	"net"
	"sync"
)

// listener keeps a limited number of connections open; more wait in the queue of the kernel.
type listener struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

// limited returns a listener that accepts a connection of l only while fewer than n are open. Its
// connections have a method NetConn, as in crypto/tls, which returns the connection of l.
func limited(l net.Listener, n int) net.Listener {
	return &listener{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
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

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// conn gives its slot back when it is closed.
type conn struct {
	net.Conn
	release func()
}

func (c *conn) NetConn() net.Conn { return c.Conn }

func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
