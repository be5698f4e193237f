package tls

import (
	"syscall"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Sendmsg seals the data in iov, as much as the socket takes and up to a batch more. The additional
// batch stays Pending until a later call sends it. It returns the number of sealed bytes, which
// need not be kept. The memory must not be in the Go heap, or must be pinned. After EPROTO see Err.
func (c *Conn) Sendmsg(fd int, iov []sys.Iovec, b *Buffers) (n int, e syscall.Errno) {
	if e := c.flush(fd); e != 0 {
		return 0, e
	}
	v := b.vectors[:copy(b.vectors[:MaxVectors], iov)]
	for total := length(v); n < total && !c.Pending(); {
		at := 0
		if c.answer || c.out.seq >= rekeyAfter {
			if at = c.updateKey(b); at == 0 {
				return n, syscall.EPROTO
			}
		}
		more := min(total-n, batch)
		size, ok := c.out.aead.Seal(b.sealed[at:], c.out.seq, v, n, more, c.most, typeApplication)
		if !ok {
			c.fail(alertInternalError, "AES-GCM failed")
			return n, syscall.EPROTO
		}
		c.out.seq += uint64((more + c.most - 1) / c.most)
		n += more
		if e := c.send(fd, b.sealed[:at+size]); e != 0 {
			return n, e
		}
	}
	return n, 0
}

// length returns the number of bytes in iov.
func length(iov []sys.Iovec) (n int) {
	for i := range iov {
		n += int(iov[i].Len)
	}
	return n
}

// flush sends the pending bytes. It returns EAGAIN if some remain.
func (c *Conn) flush(fd int) syscall.Errno {
	for c.Pending() {
		n, e := sys.Send(fd, c.pending[c.sent:], 0)
		if e != 0 {
			return e
		}
		if c.sent += n; c.sent == len(c.pending) {
			c.pending, c.sent = c.pending[:0], 0
		}
	}
	return 0
}

// send sends sealed bytes while nothing is pending. The rest becomes pending.
func (c *Conn) send(fd int, sealed []byte) syscall.Errno {
	n, e := sys.Send(fd, sealed, 0)
	if e != 0 && e != syscall.EAGAIN {
		return e
	}
	if rest := sealed[n:]; len(rest) > 0 {
		if c.pending == nil {
			c.pending = make([]byte, 0, maxSealed) // once per connection
		}
		c.pending = append(c.pending, rest...)
	}
	return 0
}

// control seals a record of another type and returns its length, 0 after an error.
func (c *Conn) control(b *Buffers, typ byte, content ...byte) int {
	v := b.vectors[MaxVectors:]
	sys.SetIovec(&v[0], b.control[:copy(b.control, content)])
	size, ok := c.out.aead.Seal(b.sealed, c.out.seq, v, 0, len(content), maxContent, typ)
	c.out.seq++
	if !ok {
		c.fail(alertInternalError, "AES-GCM failed")
		return 0
	}
	return size
}

// updateKey seals a KeyUpdate that does not request one, and switches to the next key (section
// 4.6.3). It returns the length of the record, 0 after an error.
func (c *Conn) updateKey(b *Buffers) int {
	c.answer = false
	n := c.control(b, typeHandshake, messageKeyUpdate, 0, 0, 1, 0)
	if err := c.out.update(); err != nil {
		c.fail(alertInternalError, "%w", err)
		return 0
	}
	return n
}

// SendAlert tells the peer the reason of Err, or that the connection ends, if the socket takes it.
func (c *Conn) SendAlert(fd int, b *Buffers) {
	level, alert := byte(levelFatal), c.alert
	switch {
	case c.err == nil:
		level, alert = levelWarning, alertCloseNotify
	case alert == alertCloseNotify: // the peer has ended the connection
		return
	}
	if c.flush(fd) == 0 {
		if n := c.control(b, typeAlert, level, alert); n > 0 {
			_, _ = sys.Send(fd, b.sealed[:n], 0)
		}
	}
}
