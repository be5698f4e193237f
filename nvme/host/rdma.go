package host

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// RDMA is the NVMe/RDMA transport.
type RDMA struct {
	// Provider is the RDMA stack.
	Provider verbs.Provider
	// Addr is the controller's address and port.
	Addr netip.AddrPort
}

func (r RDMA) Type() nvme.TransportType { return nvme.TransportRDMA }

// RejectError is a connect request rejected by the controller with private data.
type RejectError struct{ Status cmwire.Status }

func (e *RejectError) Error() string { return "rejected: " + e.Status.String() }

func (e *RejectError) Unwrap() error { return ErrRefused }

func (r RDMA) open(ctx context.Context, p linkParams) (_ link, err error) {
	l := &rdmaLink{
		qid: p.qid, events: make(chan verbs.Event, 16), done: make(chan struct{}),
	}
	if err := l.openCM(r.Provider); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = l.close()
		}
	}()
	if err := l.id.ResolveAddr(netip.AddrPort{}, r.Addr, resolveTimeout(ctx)); err != nil {
		return nil, fmt.Errorf("resolve %s: %w", r.Addr, err)
	}
	if _, err := l.expect(ctx, verbs.EventAddrResolved); err != nil {
		return nil, fmt.Errorf("resolve %s: %w", r.Addr, err)
	}
	if err := l.id.ResolveRoute(resolveTimeout(ctx)); err != nil {
		return nil, fmt.Errorf("route to %s: %w", r.Addr, err)
	}
	if _, err := l.expect(ctx, verbs.EventRouteResolved); err != nil {
		return nil, fmt.Errorf("route to %s: %w", r.Addr, err)
	}
	if err := l.create(p); err != nil {
		return nil, err
	}
	return l, l.connect(ctx, p, r)
}

// connect sends the connect request with the parameters of Linux and waits for the reply.
func (l *rdmaLink) connect(ctx context.Context, p linkParams, r RDMA) error {
	cntlid := p.cntlid
	if p.qid == 0 {
		cntlid = 0
	}
	err := l.id.Connect(verbs.ConnParam{
		PrivateData: cmwire.Bytes(cmwire.Req{
			QID: p.qid, HRQSize: uint16(p.receives()), HSQSize: uint16(p.size - 1), CNTLID: cntlid,
		}),
		ResponderResources: uint8(min(l.id.Device().Attr().MaxQPRdAtom, 255)),
		RetryCount:         7, RNRRetryCount: 7, FlowControl: true,
	})
	if err != nil {
		return fmt.Errorf("connect %s: %w", r.Addr, err)
	}
	ev, err := l.expect(ctx, verbs.EventEstablished)
	if err != nil {
		return fmt.Errorf("connect %s: %w", r.Addr, err)
	}
	rep, ok := cmwire.Parse[cmwire.Rep](ev.Param.PrivateData)
	if !ok || rep.RecFmt != cmwire.RecFmt || rep.CRQSize < 1 {
		return fmt.Errorf("%w: accepted with private data % x", ErrRefused, ev.Param.PrivateData)
	}
	return nil
}

func resolveTimeout(ctx context.Context) time.Duration {
	if t, ok := ctx.Deadline(); ok {
		return max(time.Until(t), time.Millisecond)
	}
	return 10 * time.Second
}

// openCM opens an event channel for this link and starts the goroutine that reads it.
func (l *rdmaLink) openCM(p verbs.Provider) error {
	var err error
	if l.cm, err = p.NewCM(); err != nil {
		return err
	}
	if l.id, err = l.cm.NewID(); err != nil {
		_ = l.cm.Close()
		return err
	}
	if l.wakeFD, err = newEventFD(); err != nil {
		_ = l.id.Destroy()
		_ = l.cm.Close()
		return err
	}
	go l.watch()
	return nil
}

// watch reads events until the channel is closed. Events of connection establishment go to expect;
// the end of the connection is recorded for poll.
func (l *rdmaLink) watch() {
	defer close(l.done)
	for {
		ev, err := l.cm.Next()
		if err != nil {
			return
		}
		switch ev.Type {
		case verbs.EventDisconnected, verbs.EventDeviceRemoval, verbs.EventTimewaitExit:
			l.disconnected.Store(true)
			wakeEventFD(l.wakeFD)
		}
		select {
		case l.events <- ev:
		default: // the connection is established, nothing expects events
		}
	}
}

// expect waits for the next event, which must be of type want.
func (l *rdmaLink) expect(ctx context.Context, want verbs.EventType) (verbs.Event, error) {
	select {
	case <-ctx.Done():
		return verbs.Event{}, fmt.Errorf("waiting for %s: %w", want, ctx.Err())
	case ev := <-l.events:
		if ev.Type == want {
			return ev, nil
		}
		rej, ok := cmwire.Parse[cmwire.Rej](ev.Param.PrivateData)
		if ev.Type == verbs.EventRejected && ok {
			return ev, &RejectError{rej.Status}
		}
		return ev, fmt.Errorf("%w: %s (status %d) instead of %s", ErrRefused, ev.Type, ev.Status,
			want)
	}
}
