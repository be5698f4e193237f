package tls

import (
	"encoding/binary"
	"syscall"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Recvmsg receives into iov, which it changes, and returns the number of bytes. 0 without an error
// is the end of the stream. drained reports whether there is nothing more before the next event of
// the socket. After EPROTO see Err. It may also write to memory of iov after the bytes.
func (c *Conn) Recvmsg(fd int, iov []sys.Iovec, b *Buffers) (n int, drained bool, e syscall.Errno) {
	room, buf, short := length(iov), b.in, false
	at, end := c.plain, copy(buf, c.kept)
	plain := buf[:at]
	for {
		for {
			m := put(&iov, plain)
			n, plain = n+m, plain[m:]
			if len(plain) > 0 || n == room || c.err != nil || c.eof {
				break
			}
			size := c.record(buf[at:end])
			if size == 0 {
				break
			}
			var direct []byte
			if len(iov) > 0 {
				direct = sys.Bytes(iov[0])
			}
			plain, m = c.open(buf[at:at+size], direct)
			iov = sys.Advance(iov, m)
			n, at = n+m, at+size
		}
		if n > 0 || c.err != nil || c.eof {
			break
		}
		end, at = copy(buf, buf[at:end]), 0
		asked := min(len(buf), room+maxRecord) - end
		m, e := sys.Recv(fd, buf[end:end+asked], 0)
		if m == 0 {
			c.keep(nil, buf[:end])
			return 0, true, e
		}
		short = m < asked
		end += m
	}
	c.keep(plain, buf[at:end])
	if n == 0 && c.err != nil {
		return 0, false, syscall.EPROTO
	}
	return n, short && len(plain) == 0 && c.record(buf[at:end]) == 0 && c.err == nil && !c.eof, 0
}

// Ready reports whether Recvmsg has data without the socket.
func (c *Conn) Ready() bool { return c.plain > 0 || c.record(c.kept) > 0 || c.err != nil || c.eof }

// Partial reports whether a record has arrived in part.
func (c *Conn) Partial() bool { return len(c.kept) > c.plain }

// put copies to the front of iov, removes the full vectors, and returns the number of bytes.
func put(iov *[]sys.Iovec, b []byte) (n int) {
	for n < len(b) && len(*iov) > 0 {
		m := copy(sys.Bytes((*iov)[0]), b[n:])
		*iov = sys.Advance(*iov, m)
		n += m
	}
	return n
}

// keep saves undelivered data.
func (c *Conn) keep(plain, records []byte) {
	if c.kept == nil && len(plain)+len(records) > 0 {
		c.kept = make([]byte, 0, maxRecord) // once per connection
	}
	c.kept = append(append(c.kept[:0], plain...), records...)
	c.plain = len(plain)
}

// record returns the length of the record at the start of b, or 0 if it is incomplete or invalid.
func (c *Conn) record(b []byte) int {
	if len(b) < recordHeader {
		return 0
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case b[0] != typeApplication: // section 5.2; also change_cipher_spec, after the handshake
		c.fail(alertUnexpectedMessage, "a record of type %d, which is not encrypted", b[0])
	case n > maxRecord-recordHeader:
		c.fail(alertRecordOverflow, "a record of %d bytes, the limit is %d", n,
			maxRecord-recordHeader)
	case n < tagSize+1:
		c.fail(alertDecodeError, "a record of %d bytes is too short", n)
	case len(b) >= recordHeader+n:
		return recordHeader + n
	}
	return 0
}

// open opens a record, into direct (n bytes) if it fits, else into plain, a part of the record.
func (c *Conn) open(record, direct []byte) (plain []byte, n int) {
	size := len(record) - recordHeader - tagSize
	out := record[recordHeader:]
	inPlace := len(direct) < size-1
	if !inPlace {
		out = direct
	}
	typ, ok := c.in.aead.Open(out, c.in.seq, record, size)
	if !ok {
		c.fail(alertBadRecordMAC, "a record was changed on its way, or is not the next one")
		return nil, 0
	}
	c.in.seq++
	content := out[:size-1]
	for ; typ == 0 && len(content) > 0; content = content[:len(content)-1] { // padding
		typ = content[len(content)-1]
	}
	if size > maxContent+1 {
		c.fail(alertRecordOverflow, "a record with %d bytes, the limit is %d", size-1, maxContent)
		return nil, 0
	}
	if typ != typeApplication || len(content) == 0 {
		if c.idle++; c.idle > maxIdle {
			c.fail(alertUnexpectedMessage, "%d records in a row without data", c.idle)
			return nil, 0
		}
	}
	switch {
	case typ == typeHandshake:
		c.handshake(content)
	case len(c.message) > 0:
		c.fail(alertUnexpectedMessage, "a handshake message is not complete")
	case typ == typeAlert:
		c.alerted(content)
	case typ != typeApplication:
		c.fail(alertUnexpectedMessage, "a record with content of type %d", typ)
	case len(content) > 0:
		if c.idle = 0; inPlace {
			return content, 0
		}
		return nil, len(content)
	}
	return nil, 0
}

// alerted handles an alert (section 6).
func (c *Conn) alerted(b []byte) {
	switch {
	case len(b) != 2:
		c.fail(alertDecodeError, "an alert of %d bytes", len(b))
	case b[1] == alertCloseNotify:
		c.eof = true
	case b[1] != alertUserCanceled:
		c.fail(alertCloseNotify, "the peer has ended the connection with alert %d", b[1])
	}
}

// handshake handles part of a handshake message after the handshake (section 4.6).
func (c *Conn) handshake(b []byte) {
	if len(b) == 0 {
		c.fail(alertUnexpectedMessage, "an empty handshake message")
		return
	}
	c.message = append(c.message, b...)
	for m := c.message; len(m) >= 4 && c.err == nil; m = c.message {
		n := 4 + int(binary.BigEndian.Uint32(m)&0xFFFFFF)
		switch known := m[0] == messageKeyUpdate && n == 5 ||
			m[0] == messageNewSessionTicket && !c.server; {
		case !known || n > maxContent:
			c.fail(alertUnexpectedMessage, "a handshake message of type %d, %d bytes", m[0], n)
			return
		case len(m) < n:
			return
		case m[0] == messageKeyUpdate && len(m) > n: // keys change with a record (section 5.1)
			c.fail(alertUnexpectedMessage, "a KeyUpdate is not the end of its record")
		case m[0] == messageKeyUpdate && m[4] > 1:
			c.fail(alertIllegalParameter, "a KeyUpdate with request %d", m[4])
		case m[0] == messageKeyUpdate:
			c.answer = c.answer || m[4] == 1
			if err := c.in.update(); err != nil {
				c.fail(alertInternalError, "%w", err)
			}
		}
		c.message = append(m[:0], m[n:]...)
	}
	if len(c.message) == 0 {
		c.message = nil
	}
}
