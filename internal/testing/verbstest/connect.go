package verbstest

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// A connection is made by REQ, REP and RTU, or refused by REJ, and ended by DREQ and DREP, as on
// InfiniBand; iWARP does the same with fewer events. As in librdmacm the active side's queue pair
// changes state when Next returns Established, not before.

// Sizes of private data on RoCE, where events always have all of it: InfiniBand specification 12.7,
// less 36 bytes for the IP addressing annex in a REQ. On iWARP events have only the bytes sent.
const (
	reqPrivate = 56
	repPrivate = 196
	rejPrivate = 148
	maxPrivate = 255
)

// Reasons of a REJ, InfiniBand specification 12.6.7.2.
const (
	rejTimeout        = 4
	rejInvalidCommID  = 6
	rejInvalidService = 8
	rejConsumer       = 28
)

// private checks private data and returns the data for the peer's event.
func (d *device) private(b []byte, size int) ([]byte, error) {
	if d.opt.Attr.IWARP {
		size = maxPrivate
	}
	if len(b) > size {
		return nil, fmt.Errorf("%d bytes of private data, at most %d: %w", len(b), size,
			unix.EINVAL)
	}
	if d.opt.Attr.IWARP {
		return slices.Clone(b), nil
	}
	return append(slices.Clone(b), make([]byte, size-len(b))...), nil
}

// params checks the READ depths of a Connect or Accept.
func (d *device) params(p *verbs.ConnParam) error {
	if int(p.ResponderResources) > d.opt.Attr.MaxQPRdAtom ||
		int(p.InitiatorDepth) > d.opt.Attr.MaxQPInitRdAtom {
		return fmt.Errorf("responder resources %d of %d, initiator depth %d of %d: %w",
			p.ResponderResources, d.opt.Attr.MaxQPRdAtom,
			p.InitiatorDepth, d.opt.Attr.MaxQPInitRdAtom, unix.EINVAL)
	}
	return nil
}

// send checks a Connect or Accept, which needs the ID in state, and waits in state next for the
// answer to its message. p becomes the parameters for the peer's event.
func (id *cmID) send(c Call, p *verbs.ConnParam, size int, state, next idState) error {
	f := id.cm.host.f
	if err := id.cm.host.fault(c); err != nil {
		return err
	}
	if id.state != state || id.qp == nil {
		return fmt.Errorf("%s: no route or request, or no queue pair: %w", c, unix.EINVAL)
	}
	private, err := id.dev.private(p.PrivateData, size)
	if err == nil {
		err = id.dev.params(p)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	p.PrivateData = private
	id.set(next)
	id.timeout(f.opt.CMTimeout, func() {
		id.set(idDone)
		id.post(verbs.Event{Type: verbs.EventUnreachable, Status: -int(unix.ETIMEDOUT)})
	})
	return nil
}

func (id *cmID) Connect(p verbs.ConnParam) error {
	h := id.cm.host
	f := h.f
	f.lock()
	defer f.unlock()
	if err := id.send(CallConnect, &p, reqPrivate, idRouted, idReqSent); err != nil {
		return err
	}
	id.request = p
	to := f.find(id.remote.Addr())
	if to != nil && to.opt.Attr.IWARP == id.dev.opt.Attr.IWARP &&
		f.reaches(h, to.host, MessageREQ) {
		to.recvREQ(id)
	}
	return nil
}

// recvREQ handles the arrival of a connection request.
func (d *device) recvREQ(from *cmID) {
	l := d.host.listener(from.remote)
	switch {
	case l == nil:
		from.recvREJ(d.host, rejInvalidService, unix.ECONNREFUSED, nil)
		return
	case l.pending >= l.backlog:
		from.recvREJ(d.host, rejConsumer, unix.ECONNRESET, nil)
		return
	}
	id := l.cm.newID()
	id.dev, id.local, id.remote, id.peer, id.parent = d, from.remote, from.local, from, l
	from.peer = id
	id.set(idReqRcvd)
	l.pending++
	p := from.request
	// rdma_get_cm_event(3)
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	id.postTake(verbs.Event{Type: verbs.EventConnectRequest, Listener: l, Param: p},
		func(*verbs.Event) bool {
			id.parent = nil
			l.pending--
			return true
		})
}

// recvREJ handles the arrival of a refusal. On iWARP the status is an errno.
func (id *cmID) recvREJ(from *host, reason int, errno unix.Errno, private []byte) {
	f := from.f
	if !f.reaches(from, id.cm.host, MessageREJ) {
		return
	}
	if id.state != idReqSent && id.state != idRepSent {
		return
	}
	if id.dev.opt.Attr.IWARP {
		reason = -int(errno)
	}
	id.set(idDone)
	ev := verbs.Event{
		Type: verbs.EventRejected, Status: reason,
		Param: verbs.ConnParam{PrivateData: private},
	}
	id.postTake(ev, func(*verbs.Event) bool {
		if id.qp != nil {
			id.qp.toError()
		}
		return true
	})
}

func (id *cmID) Accept(p verbs.ConnParam) error {
	h := id.cm.host
	h.f.lock()
	defer h.f.unlock()
	if err := id.send(CallAccept, &p, repPrivate, idReqRcvd, idRepSent); err != nil {
		return err
	}
	to := id.peer
	id.qp.connect(to.qp, p.InitiatorDepth, to.request.RNRRetryCount)
	if h.f.reaches(h, to.cm.host, MessageREP) {
		to.recvREP(id, p)
	}
	return nil
}

// connect makes the queue pair ready.
func (q *qp) connect(peer *qp, depth, rnrRetry uint8) {
	if q.state != stateInit {
		return
	}
	q.state, q.peer = stateRTS, peer
	q.rdAtomic, q.rnrRetry = int(depth), min(rnrRetry, 7)
	q.dev.f.schedule(q)
	q.dev.f.schedule(peer)
}

// recvREP handles the arrival of the acceptance. The answer is sent when Next takes the event.
func (id *cmID) recvREP(from *cmID, p verbs.ConnParam) {
	if id.state != idReqSent || id.freed {
		from.recvREJ(id.cm.host, rejInvalidCommID, unix.ECONNRESET, nil)
		return
	}
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	id.postTake(verbs.Event{Type: verbs.EventEstablished, Param: p}, func(ev *verbs.Event) bool {
		if id.state != idReqSent || id.qp == nil {
			return false
		}
		// The passive side decides the READ depths.
		if id.dev.params(&ev.Param) != nil {
			id.qp.toError()
			ev.Type, ev.Status = verbs.EventConnectError, -int(unix.EINVAL)
			return true
		}
		id.qp.connect(from.qp, ev.Param.InitiatorDepth, p.RNRRetryCount)
		id.set(idConnected)
		f := id.cm.host.f
		if id.dev.opt.Attr.IWARP && from.state != idRepSent { // the stream has ended
			id.set(idDone)
			id.qp.toError()
			defer id.post(verbs.Event{Type: verbs.EventDisconnected})
			return true
		}
		if f.reaches(id.cm.host, from.cm.host, MessageRTU) {
			from.recvRTU(id)
		}
		return true
	})
}

// recvRTU handles the arrival of the active side's confirmation.
func (id *cmID) recvRTU(from *cmID) {
	if !id.freed && id.state == idRepSent {
		id.set(idConnected)
		id.post(verbs.Event{Type: verbs.EventEstablished})
	}
}

func (id *cmID) Reject(private []byte) error {
	h := id.cm.host
	h.f.lock()
	defer h.f.unlock()
	if err := h.fault(CallReject); err != nil {
		return err
	}
	if id.state != idReqRcvd {
		return fmt.Errorf("%s: no request: %w", CallReject, unix.EINVAL)
	}
	priv, err := id.dev.private(private, rejPrivate)
	if err != nil {
		return fmt.Errorf("%s: %w", CallReject, err)
	}
	id.set(idDone)
	id.peer.recvREJ(h, rejConsumer, unix.ECONNRESET, priv)
	return nil
}

func (id *cmID) Disconnect() error {
	h := id.cm.host
	h.f.lock()
	defer h.f.unlock()
	if err := h.fault(CallDisconnect); err != nil {
		return err
	}
	if id.qp != nil {
		id.qp.toError()
	}
	switch {
	case id.dev == nil || id.dev.opt.Attr.IWARP: // toError has ended the stream
	case id.state == idConnected: // before that the InfiniBand CM sends no DREQ
		id.sendDREQ()
	case id.state == idDreqRcvd:
		id.sendDREP()
	}
	return nil
}

// sendDREQ disconnects and waits for the answer.
func (id *cmID) sendDREQ() {
	h := id.cm.host
	id.set(idDreqSent)
	id.timeout(h.f.opt.CMTimeout, func() { id.disconnected(-int(unix.ETIMEDOUT)) })
	if to := id.peer; h.f.reaches(h, to.cm.host, MessageDREQ) {
		to.recvDREQ(id)
	}
}

// recvDREQ handles the arrival of a disconnection. The queue pair is unchanged until this side
// disconnects.
func (id *cmID) recvDREQ(from *cmID) {
	switch id.state {
	case idConnected, idRepSent:
		id.set(idDreqRcvd)
		id.post(verbs.Event{Type: verbs.EventDisconnected})
	case idDreqSent: // both sides at once
		id.disconnected(0)
		from.disconnected(0)
	default: // without a connection the kernel answers
		from.disconnected(0)
	}
}

func (id *cmID) sendDREP() {
	h := id.cm.host
	id.set(idDone)
	if to := id.peer; h.f.reaches(h, to.cm.host, MessageDREP) && to.state == idDreqSent {
		to.disconnected(0)
	}
	id.timewait()
}

// disconnected ends the connection of the side that sent a DREQ.
func (id *cmID) disconnected(status int) {
	id.set(idDone)
	id.post(verbs.Event{Type: verbs.EventDisconnected, Status: status})
	id.timewait()
}

func (id *cmID) timewait() {
	id.timeout(timewait, func() { id.post(verbs.Event{Type: verbs.EventTimewaitExit}) })
}

// streamLost ends an iWARP connection at once on both sides.
func (id *cmID) streamLost() {
	for _, x := range []*cmID{id, id.peer} {
		if x == nil || x.freed {
			continue
		}
		if x.state == idConnected || x.state == idRepSent {
			x.set(idDone)
			x.post(verbs.Event{Type: verbs.EventDisconnected})
			if x.qp != nil {
				x.qp.toError()
			}
		}
	}
}

func (id *cmID) Destroy() error {
	h := id.cm.host
	h.f.lock()
	defer h.f.unlock()
	if err := h.fault(CallDestroyID); err != nil {
		return err
	}
	if id.freed {
		panic("verbstest: a second " + string(CallDestroyID))
	}
	if id.qp != nil && !id.qp.stuck {
		return fmt.Errorf("%s: it has a queue pair: %w", CallDestroyID, unix.EBUSY)
	}
	id.destroy()
	return nil
}

// destroy frees an ID. The peer gets the message that the kernel would send.
func (id *cmID) destroy() {
	h := id.cm.host
	switch id.state {
	case idListening:
		for _, x := range slices.Clone(h.ids) {
			if x.parent == id {
				x.destroy() // Next has not returned it yet
			}
		}
	case idReqSent:
		if id.peer != nil {
			id.peer.recvREJ(h, rejTimeout, unix.ECONNRESET, nil)
		}
	case idReqRcvd:
		id.peer.recvREJ(h, rejConsumer, unix.ECONNRESET, nil)
	case idRepSent:
		id.peer.recvREJ(h, rejConsumer, unix.ECONNRESET, nil)
	case idConnected:
		if id.dev.opt.Attr.IWARP {
			id.streamLost()
		} else if to := id.peer; h.f.reaches(h, to.cm.host, MessageDREQ) {
			to.recvDREQ(id)
		}
	case idDreqRcvd:
		id.sendDREP()
	}
	id.freed = true
	id.set(idDone)
	id.cm.ids--
	h.live.IDs--
	h.ids = slices.DeleteFunc(h.ids, func(x *cmID) bool { return x == id })
	id.cm.queue = slices.DeleteFunc(id.cm.queue, func(e queued) bool { return e.id == id })
}
