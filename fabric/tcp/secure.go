package tcp

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/turns"
)

// This file implements TLS for a queue, see ADR 0034. A connection in its handshake is unassociated
// and has the time limit of its ICReq. The reactor moves its bytes; a few goroutines do the
// computation. Afterwards the record layer is between the queue and its socket.

// security is the TLS of one queue. It belongs to the queue's reactor, except for handshake while
// job has it.
type security struct {
	handshake *tls.Server // until it is complete
	job       *handshakeJob
	tls       *tls.Conn // once the handshake is complete
	psk       *tls.PSK
}

// handshakeJob is a step of a handshake.
type handshakeJob struct {
	turns.Job
	handshake *tls.Server
	in, out   []byte
	conn      *tls.Conn
	err       error
}

var (
	errPlain = errors.New("the host does not use TLS, which this listener requires")

	tlsOffHint = "the host uses TLS, which is off at this listener: see the key tls"
	plainHint  = "nvme connect with --tls, and a key of the host in its keyring"
)

// begin checks the first bytes of a connection. It returns false if they begin an ICReq and TLS is
// not required.
func (q *queue) begin(b []byte) (handled bool) {
	policy := q.conn.tls
	switch {
	case q.tls != nil || policy == fabric.TLSOff:
		return false
	case tls.IsTLS(b):
		if err := q.g.makeTLSBuffers(); err != nil {
			q.end(err)
			return true
		}
		q.handshake = tls.NewServer(q.g.t.cfg.PSKs)
		q.step(b)
		return true
	case policy == fabric.TLSRequired:
		q.sendRaw(pdu.AppendTermReq(nil, pdu.TypeC2HTermReq,
			pdu.Fault{FES: pdu.FESSequence}, b[:pdu.HeaderSize]))
		q.peerLog().Report(event.ConnectionRefused, "local", q.conn.info.Local, "err", errPlain,
			"hint", plainHint)
		q.close(queueTerminating, errPlain, q.g.t.cfg.LingerTimeout.Nanoseconds())
		return true
	}
	q.conn.tls = fabric.TLSOff
	_ = q.conn.counted.Charge(-tls.Memory) // reducing the charge always succeeds
	return false
}

// makeTLSBuffers makes the TLS buffers that the queues of the group share, for the first one.
func (g *Group) makeTLSBuffers() (err error) {
	if g.tls == nil {
		if g.tls, err = tls.NewBuffers(headsSize); err == nil {
			g.heads = g.tls.Headers[:0]
		}
	}
	return err
}

// receiveHandshake takes input of a handshake. It returns the number of steps made.
func (q *queue) receiveHandshake() int {
	if q.job != nil { // one step at a time, and none for a peer that has left
		if q.drained = true; q.hungUp {
			q.kill(errPeerClosed)
		}
		return 0
	}
	q.g.inTurn += receiveCost
	b := q.g.rx[:tls.MaxInput]
	n, e := sys.Recv(q.fd, b, 0)
	if n == 0 {
		return q.noData(e)
	}
	q.received(n, n < len(b))
	q.step(b[:n])
	return 1
}

// step starts the processing of handshake input, off the reactor.
func (q *queue) step(b []byte) {
	j := &handshakeJob{handshake: q.handshake, in: slices.Clone(b)}
	// Bytes after the ClientHello come from a peer that has shown a PSK.
	counted, begun := q.conn.counted, q.handshake.Begun()
	j.From(q.conn.info.Remote.Addr())
	j.Known = begun || counted.FromAllowed()
	loop := q.g.loop
	j.Run = func() {
		counted.Hold(true)
		if j.out, j.conn, j.err = j.handshake.Step(j.in); j.conn != nil || j.err != nil {
			j.handshake.Free()
		}
	}
	j.Done = func() { loop.Post(func() { q.stepped(j) }) }
	q.job = j
	q.g.t.handshakes.Submit(&j.Job)
}

// stepped is called when handshake input has been processed.
func (q *queue) stepped(j *handshakeJob) {
	current := q.job == j
	if current {
		q.job = nil
	}
	if j.handshake.Begun() {
		q.conn.counted.Shown()
	}
	q.conn.counted.Hold(false)
	if !current || q.state != queueConnecting {
		j.handshake.Free()
		if j.conn != nil {
			j.conn.Close()
		}
		return
	}
	if j.conn != nil {
		q.g.t.encrypted.Add(1)
		q.tls, q.psk, q.handshake = j.conn, j.handshake.PSK(), nil
		q.conn.info.TLS = &fabric.TLS{
			HostNQN: q.psk.HostNQN, SubNQN: q.psk.SubNQN, Cipher: q.psk.Cipher(),
		}
		if key, counts := q.psk.Key, q.g.t.cfg.KeyCounts; key != nil && counts != nil {
			q.conn.info.TLS.Counts = func() bool { return counts(q.psk.HostNQN, key) }
		}
		if q.psk.Generated {
			q.conn.info.TLS.Generated = q.psk.TLSPSK.Identity
		}
	}
	// The socket's send buffer is empty, so there is room.
	if n, e := sys.Send(q.fd, j.out, 0); j.err == nil && n < len(j.out) {
		q.broken("send", e)
		return
	}
	if j.err != nil {
		q.handshakeFailed(j)
		return
	}
	q.g.activate(q)
}

// handshakeFailed ends the connection. The alert has been sent to the peer.
func (q *queue) handshakeFailed(j *handshakeJob) {
	p := j.handshake.PSK()
	hint := "the host offers no TLS 1.3 with a PSK, psk_dhe_ke and a cipher suite of its hash"
	expired := q.g.t.cfg.KeysExpired
	switch {
	case errors.Is(j.err, tls.ErrUnknown) && expired != nil && expired(p.HostNQN):
		hint = "the keys of the host have expired: keys_until"
	case errors.Is(j.err, tls.ErrUnknown) && p.Generated:
		hint = "the PSK that the host has generated has ended; the host has to generate another one"
	case errors.Is(j.err, tls.ErrUnknown):
		hint = "set tls_key of the host, the same on both sides: compare the output of " +
			"nvmf-target key psk-identity"
	case errors.Is(j.err, tls.ErrWrongKey) && p.Generated:
		hint = "the host presents a PSK other than the one it has generated: it has to generate " +
			"a new one"
	case errors.Is(j.err, tls.ErrWrongKey):
		hint = "set the same tls_key on both sides: nvmf-target key check"
	}
	q.peerLog().Report(event.TLSFailed, "local", q.conn.info.Local, "host", p.HostNQN,
		"subsystem", p.SubNQN, "err", j.err, "hint", hint)
	// Input that is not received would make the socket send a reset, which could destroy the alert.
	_ = unix.Shutdown(q.fd, unix.SHUT_WR)
	_, _ = sys.Recv(q.fd, q.g.rx, 0)
	q.kill(j.err)
}

// tlsFailed ends the connection because of a bad record. The alert follows when the handler knows,
// as the host may repeat writes after it.
func (q *queue) tlsFailed() {
	err := q.tls.Err()
	q.g.inTurn += endCost // mostly the line in the log
	q.peerLog().Report(event.ConnectionEnded, "local", q.conn.info.Local, "err", err)
	q.close(queueTerminating, err, min(orderlyLinger, q.g.t.cfg.LingerTimeout).Nanoseconds())
}

// logTLS logs the PSK of the host, once per controller.
func (q *queue) logTLS() {
	if q.tls == nil || !q.admin {
		return
	}
	labels, psk := "RFC 8446", "configured"
	if q.psk.Compat {
		labels = "compat"
	}
	if q.psk.Generated {
		psk = "generated"
	}
	q.peerLog().Report(event.TLSUsed, "host", q.psk.HostNQN,
		"subsystem", q.psk.SubNQN, "cipher", q.psk.Cipher(), "psk", psk, "identity",
		q.psk.Version, "labels", labels)
}

// closeTLS wipes and frees keys, and ends a step in progress.
func (q *queue) closeTLS() {
	if q.handshake != nil {
		q.g.t.failedHandshakes.Add(1)
	}
	switch {
	case q.job != nil && !q.g.t.handshakes.Cancel(&q.job.Job): // it frees the handshake
	case q.handshake != nil:
		q.handshake.Free()
	}
	q.job, q.handshake = nil, nil
	if q.tls != nil {
		q.tls.Close()
	}
}

// pending reports whether sealed records wait for the socket.
func (q *queue) pending() bool { return q.tls != nil && q.tls.Pending() }
