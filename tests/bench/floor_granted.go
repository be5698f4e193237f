package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// The floor of large writes with R2Ts exchanges what NVMe/TCP does, message by message: a command, an R2T for all of its data, a H2CData in
// answer to that, a response. Each request in flight sends out of memory of its own, and the server receives into a large area. The first
// byte of a message says what it is.

const (
	grantCommand byte = iota // CapsuleCmd
	grantData                // H2CData
	grantR2T
	grantResponse
)

const grantVectors = 64 // in one sendmsg

// grantServer is the server's end of such a connection.
type grantServer struct {
	fd     int
	data   int // bytes of a write
	memory []byte
	at     int // in memory: where the next bytes go
	kind   byte
	need   int    // bytes of the message that arrives
	out    []byte // answers not sent yet
}

// poll receives once and sends the answers.
func (s *grantServer) poll() syscall.Errno {
	if s.at+serverBuffer > len(s.memory) {
		s.at = 0
	}
	in := s.memory[s.at : s.at+serverBuffer]
	n, e := sys.Recv(s.fd, in, 0)
	switch {
	case n == 0 && e == 0:
		return syscall.ECONNRESET
	case e != 0 && e != syscall.EAGAIN:
		return e
	case e == 0:
		s.at += n
		s.take(in[:n])
	}
	if len(s.out) == 0 {
		return 0
	}
	n, e = sys.Send(s.fd, s.out, 0)
	if e == syscall.EAGAIN {
		return 0
	}
	if e == 0 {
		s.out = s.out[:copy(s.out, s.out[n:])]
	}
	return e
}

// take answers the messages that end in b.
func (s *grantServer) take(b []byte) {
	for len(b) > 0 {
		if s.need == 0 {
			s.kind, s.need = b[0], floorRequest
			if s.kind == grantData {
				s.need = floorHeader + s.data
			}
		}
		n := min(s.need, len(b))
		b = b[n:]
		if s.need -= n; s.need == 0 {
			answer := [floorHeader]byte{grantResponse}
			if s.kind == grantCommand {
				answer[0] = grantR2T
			}
			s.out = append(s.out, answer[:]...)
		}
	}
}

// grantClient is the other end.
type grantClient struct {
	fd      int
	data    int
	memory  []byte // depth writes
	at      int    // in memory: where the next write's data is
	in      []byte
	part    int  // bytes of an incomplete answer
	kind    byte // of it
	command [floorRequest]byte
	header  [floorHeader]byte // of data
	queued  []sys.Iovec
	store   []sys.Iovec
	done    uint64
}

func (c *grantClient) answers() uint64 { return c.done }

func newGrantClient(fd, data, depth int, in []byte) *grantClient {
	c := &grantClient{fd: fd, data: data, memory: make([]byte, data*depth), in: in, store: make([]sys.Iovec, 0, 4*depth)}
	c.command[0], c.header[0] = grantCommand, grantData
	touch(c.memory)
	c.queued = c.store
	for range depth {
		c.push(c.command[:])
	}
	return c
}

func (c *grantClient) push(b []byte) {
	if len(c.queued) == cap(c.queued) {
		c.queued = append(c.store[:0], c.queued...) // room for two vectors of each request in flight, and more
	}
	var v sys.Iovec
	sys.SetIovec(&v, b)
	c.queued = append(c.queued, v)
}

func (c *grantClient) poll() error {
	for len(c.queued) > 0 {
		batch := c.queued[:min(len(c.queued), grantVectors)]
		n, e := sys.Sendmsg(c.fd, batch, 0)
		if e == syscall.EAGAIN {
			break
		}
		if e != 0 {
			return fmt.Errorf("floor client: send: %w", e)
		}
		c.queued = c.queued[len(batch)-len(sys.Advance(batch, n)):]
	}
	n, e := sys.Recv(c.fd, c.in, 0)
	switch {
	case n == 0 && e == 0:
		return errors.New("floor client: the server closed the connection")
	case e == syscall.EAGAIN:
		return nil
	case e != 0:
		return fmt.Errorf("floor client: receive: %w", e)
	}
	for b := c.in[:n]; len(b) > 0; {
		if c.part == 0 {
			c.kind = b[0]
		}
		k := min(floorHeader-c.part, len(b))
		b = b[k:]
		if c.part += k; c.part == floorHeader {
			c.part = 0
			c.proceed()
		}
	}
	return nil
}

// proceed goes on with the write that an answer is for.
func (c *grantClient) proceed() {
	if c.kind == grantResponse {
		c.done++
		c.push(c.command[:])
		return
	}
	c.push(c.header[:])
	c.push(c.memory[c.at : c.at+c.data])
	c.at = (c.at + c.data) % len(c.memory)
}
