package mpa

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
)

// Connect connects and sends a request, in a goroutine.
func (id *ID) Connect(p verbs.ConnParam) error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := id.Check("connect to", &p, userPrivate, id.State == ids.Routed && id.QP != nil,
		"route, or no queue pair"); err != nil {
		return err
	}
	id.State = ids.Connecting
	f := &frame{revision: maxRevision, flags: flagLarge | flagEnhanced, private: p.PrivateData}
	if m.opt.CRC {
		f.flags |= flagCRC
	}
	f.ird, f.ord = uint16(p.ResponderResources), uint16(p.InitiatorDepth)
	if m.opt.RTR {
		f.ird, f.ord = f.ird|peerToPeer, max(f.ord, 1)|rtrWrite|rtrRead
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.opt.SetupTime)
	id.cancel = cancel
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(id.From), Control: m.control,
		KeepAliveConfig: m.keepAlive(),
	}
	d.SetMultipathTCP(false)
	to := id.To.String()
	m.running.Go(func() {
		defer cancel()
		c, r, err := exchange(ctx, &d, to, f)
		m.mu.Lock()
		defer m.mu.Unlock()
		id.answered(c, f, r, p, err)
	})
	return nil
}

// exchange connects, sends the request and waits for the reply.
func exchange(ctx context.Context, d *net.Dialer, to string, f *frame) (net.Conn, *frame, error) {
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if _, err = c.Write(f.encode(requestKey)); err == nil {
		var r *frame
		if r, err = readFrame(c, replyKey); err == nil {
			return c, r, nil
		}
	}
	return nil, nil, errors.Join(err, c.Close())
}

// answered handles the reply r to the request q, or the error. m.mu is held.
func (id *ID) answered(c net.Conn, q, r *frame, p verbs.ConnParam, err error) {
	m := id.cm.m
	if id.State != ids.Connecting {
		if c != nil {
			_ = c.Close()
		}
		return
	}
	switch {
	case err != nil:
		id.failed(err)
		return
	case r.is(flagReject):
		_ = c.Close()
		id.end(verbs.Event{
			Type: verbs.EventRejected, Status: -int(unix.ECONNRESET),
			Param: verbs.ConnParam{PrivateData: r.private},
		})
		return
	case r.is(flagMarkers) || !r.is(flagEnhanced) || !q.agrees(r):
		m.stats.Invalid.Add(1)
		_ = c.Close()
		id.failed(fmt.Errorf("%w: not as requested", errFrame))
		return
	}
	ird, ord := r.depths() // the passive side decides
	peer := Peer{
		Active: true, CRC: q.is(flagCRC) || r.is(flagCRC), Large: r.is(flagLarge),
		ResponderResources: min(p.ResponderResources, ord),
		InitiatorDepth:     min(p.InitiatorDepth, ird),
	}
	if q.rtr() != NoRTR {
		peer.RTR = r.rtr()
	}
	id.From = addrPort(c.LocalAddr())
	if err := id.connect(c, peer); err != nil {
		id.failed(err)
		return
	}
	id.establish(verbs.ConnParam{
		PrivateData: r.private, ResponderResources: ord, InitiatorDepth: ird,
	})
}

// agrees reports whether a reply has chosen an RTR that was offered (RFC 6581, section 9.2).
func (q *frame) agrees(r *frame) bool {
	if q.rtr() == NoRTR || r.rtr() == NoRTR {
		return q.rtr() == r.rtr()
	}
	return q.ord&r.ord&(rtrWrite|rtrRead) != 0
}

// failed ends a connection that got no reply.
func (id *ID) failed(err error) {
	ev := verbs.Event{Type: verbs.EventRejected, Status: ids.Status(err, unix.ECONNRESET)}
	switch { // otherwise it was refused, reset, or closed
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.EHOSTUNREACH) ||
		errors.Is(err, unix.ENETUNREACH):
		ev.Type, ev.Status = verbs.EventUnreachable, ids.Status(err, unix.ETIMEDOUT)
	case errors.Is(err, errFrame) || errors.Is(err, unix.EINVAL):
		ev.Type, ev.Status = verbs.EventConnectError, -int(unix.EINVAL)
	}
	id.end(ev)
}

// end tells the program that there is no connection. The queue pair fails, as with librdmacm.
func (id *ID) end(ev verbs.Event) {
	id.State = ids.Done
	id.Post(ev)
	id.Fail()
}
