package host

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// tcpTLS is the TLS of a link, if it has any.
type tcpTLS struct {
	conn    *tls.Conn
	buffers *tls.Buffers
	iov     []sys.Iovec
	pins    runtime.Pinner
}

// tlsCopied is the size in bytes from which data to send is pinned instead of copied.
const tlsCopied = 512

// secure makes the TLS connection of the link.
func (l *tcpLink) secure(ctx context.Context, t TCP, p linkParams) (err error) {
	psk, err := t.PSK(p.hostNQN, p.subNQN)
	if err != nil {
		return err
	}
	if l.tls.buffers, err = tls.NewBuffers(64 << 10); err != nil {
		return err
	}
	l.tls.iov = make([]sys.Iovec, tls.MaxVectors)
	c, err := tls.NewClient(psk)
	if err != nil {
		return err
	}
	defer c.Free()
	var in []byte
	buf := make([]byte, tls.MaxInput)
	for {
		out, conn, err := c.Step(in)
		if n, errno := sys.Send(l.fd, out, 0); n < len(out) {
			return fmt.Errorf("%w: TLS handshake: %w", ErrClosed, errno)
		}
		if err != nil {
			return fmt.Errorf("%w: TLS handshake: %w", ErrRefused, err)
		}
		if conn != nil {
			l.tls.conn = conn
			return nil
		}
		if err := pollFD(ctx, l.fd, unix.POLLIN); err != nil {
			return err
		}
		n, errno := sys.Recv(l.fd, buf, 0)
		switch {
		case errno != 0 && errno != unix.EAGAIN:
			return fmt.Errorf("%w: TLS handshake: %w", ErrRefused, errno)
		case errno == 0 && n == 0:
			return fmt.Errorf("%w: the controller closed the connection during the TLS handshake",
				ErrRefused)
		}
		in = buf[:n]
	}
}

func (l *tcpLink) sendmsg(iov []sys.Iovec) (n int, errno unix.Errno) {
	if l.tls.conn == nil {
		return sys.Sendmsg(l.fd, iov, 0)
	}
	t, used := &l.tls, 0
	out, copies := t.iov[:0], t.buffers.Headers
	for i := range iov { // headers, and often data, are in the Go heap
		if len(out) == cap(out) || len(copies)-used < tlsCopied {
			break
		}
		v := iov[i]
		if v.Len < tlsCopied {
			b := copies[used : used+copy(copies[used:], sys.Bytes(v))]
			used += len(b)
			sys.SetIovec(&v, b)
		} else {
			t.pins.Pin(v.Base)
		}
		out = append(out, v)
	}
	n, errno = t.conn.Sendmsg(l.fd, out, t.buffers)
	clear(out)
	t.pins.Unpin()
	if n == 0 && errno == 0 && l.tls.pending() {
		errno = unix.EAGAIN
	}
	return n, errno
}

// recvmsg receives into iov. drained reports whether no more bytes were there.
func (l *tcpLink) recvmsg(iov []sys.Iovec) (n int, drained bool, errno unix.Errno) {
	if l.tls.conn != nil {
		return l.tls.conn.Recvmsg(l.fd, iov, l.tls.buffers)
	}
	room := 0
	for i := range iov {
		room += int(iov[i].Len)
	}
	n, errno = sys.Recvmsg(l.fd, iov, 0)
	return n, n < room, errno
}

func (t *tcpTLS) pending() bool { return t.conn != nil && t.conn.Pending() }

func (t *tcpTLS) ready() bool { return t.conn != nil && t.conn.Ready() }

func (t *tcpTLS) explain(errno unix.Errno) error {
	if errno == unix.EPROTO && t.conn != nil {
		return t.conn.Err()
	}
	return errno
}

func (t *tcpTLS) close() error {
	if t.conn != nil {
		t.conn.Close()
	}
	if t.buffers == nil {
		return nil
	}
	return t.buffers.Close()
}
