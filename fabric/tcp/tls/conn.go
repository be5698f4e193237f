package tls

import (
	"errors"
	"fmt"
	"io"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Conn is the record layer of a connection. One goroutine uses it.
type Conn struct {
	server  bool
	in, out half
	most    int    // bytes of content in a record that the peer accepts
	message []byte // part of a handshake message
	idle    int    // records without data since the last one with data
	answer  bool   // the peer has asked for a KeyUpdate
	eof     bool   // close_notify was received
	err     error
	alert   byte // for err

	// kept was received and not delivered: plain bytes of plaintext, and then records. It is at
	// most one record long.
	kept    []byte
	plain   int
	pending []byte // sealed, and not sent: at most a batch
	sent    int    // bytes of pending
}

// half has the keys of one direction.
type half struct {
	seal   bool
	k      schedule
	secret []byte
	aead   *openssl.AEAD
	seq    uint64 // of the next record
}

const (
	// batch is the number of data bytes sealed at once and sent with one call. With the overhead of
	// the records they fit into one buffer of TCP, which holds whole segments up to 64 KiB: 62,636
	// bytes with an MTU of 9000. With a larger batch each call would send an additional small
	// segment, see ADR 0034.
	batch = 60 << 10
	// minFragment is the smallest record size that a peer may request (RFC 6066 section 4).
	minFragment = 512
	maxSealed   = batch + (batch/minFragment+2)*(recordHeader+1+tagSize)
	maxReceived = 144<<10 + maxRecord
	controlSize = 64
	// MaxVectors is the maximum number of vectors that Sendmsg takes.
	MaxVectors = 512
)

// Memory is the most memory of a connection in bytes, without Buffers. A handshake has less.
const Memory = maxRecord + maxSealed

// maxIdle is the maximum number of consecutive records without data, as in OpenSSL.
const maxIdle = 32

// rekeyAfter is the number of records of a key, see ADR 0034. It is a variable for tests.
var rekeyAfter uint64 = 1 << 36

// Buffers are used by the connections of one goroutine, one after the other. They are outside of
// the Go heap, because OpenSSL gets vectors that refer to them.
type Buffers struct {
	// Headers is for headers of the caller, which must not be in the Go heap.
	Headers             []byte
	in, sealed, control []byte
	vectors             []sys.Iovec
	region              *mem.Region
}

// NewBuffers makes buffers with headers bytes of Headers, a multiple of 16.
func NewBuffers(headers int) (*Buffers, error) {
	const vectors = (MaxVectors + 1) * 16 // bytes; the last one is for control
	r, err := mem.Map("tls", headers+vectors+maxReceived+maxSealed+controlSize)
	if err != nil {
		return nil, fmt.Errorf("memory for TLS: %w", err)
	}
	rest := r.Bytes()
	take := func(n int) (b []byte) {
		b, rest = rest[:n:n], rest[n:]
		return b
	}
	return &Buffers{
		Headers: take(headers), vectors: openssl.Vectors(take(vectors)), in: take(maxReceived),
		sealed: take(maxSealed), control: take(controlSize), region: r,
	}, nil
}

// Close unmaps them.
func (b *Buffers) Close() error { return b.region.Unmap() }

// newConn makes the connection after a complete handshake.
func newConn(hs *openssl.Handshake, server bool, h auth.Hash) (*Conn, error) {
	client, srv := hs.Secrets()
	c := &Conn{server: server, most: min(max(hs.MaxFragment(), minFragment), maxContent)}
	k := newSchedule(h)
	c.in, c.out = half{k: k, secret: client}, half{k: k, secret: srv, seal: true}
	if !server {
		c.in.secret, c.out.secret = srv, client
	}
	c.kept = hs.Left(make([]byte, maxRecord))
	if err := errors.Join(c.in.setKey(h), c.out.setKey(h)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// setKey derives the keys of the traffic secret (section 7.3).
func (h *half) setKey(hash auth.Hash) (err error) {
	n := 16
	if hash == auth.SHA384 {
		n = 32
	}
	key := h.k.expand(h.secret, "key", nil, n)
	defer clear(key)
	old := h.aead
	if h.aead, err = openssl.NewAEAD(h.seal, key, h.k.expand(h.secret, "iv", nil, 12)); err != nil {
		h.aead = old
		return err
	}
	old.Free()
	h.seq = 0
	return nil
}

// update switches to the next traffic secret (section 7.2).
func (h *half) update() error {
	next := h.k.expand(h.secret, "traffic upd", nil, len(h.secret))
	clear(h.secret)
	h.secret = next
	if len(next) > 32 {
		return h.setKey(auth.SHA384)
	}
	return h.setKey(auth.SHA256)
}

// fail records the reason why the connection must end, and the alert for it.
func (c *Conn) fail(alert byte, format string, args ...any) {
	if c.err == nil {
		c.alert, c.err = alert, fmt.Errorf("TLS: "+format, args...)
	}
}

// Err is the reason why the connection must end after EPROTO, or io.EOF if the peer has ended it.
func (c *Conn) Err() error {
	if c.err == nil && c.eof {
		return io.EOF
	}
	return c.err
}

// Pending reports whether sealed bytes wait for the socket.
func (c *Conn) Pending() bool { return len(c.pending) > 0 }

// Close wipes the keys. Further calls do nothing.
func (c *Conn) Close() {
	for _, h := range []*half{&c.in, &c.out} {
		clear(h.secret)
		h.aead.Free()
	}
	c.kept, c.pending = nil, nil
}
