package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
)

// channel is one reactor's access to the device of one namespace, and the shares of its hosts.
type channel struct {
	dispatch.Channel
	h      *Handler
	ns     *namespaces.Namespace
	shares shares.Channel
}

// channelTo returns the channel of ns on this reactor, and opens it if there is none. It returns
// nil if the namespace is retired.
func (h *Handler) channelTo(ns *namespaces.Namespace) *channel {
	if ch := h.channel(ns); ch != nil {
		return ch
	}
	ch := &channel{h: h, ns: ns, shares: shares.Channel{Namespace: ns}}
	ch.User = ch
	if !h.dispatch.Open(&ch.Channel, &ns.Namespace) {
		return nil
	}
	if more := ns.Slot + 1 - len(h.channels); more > 0 {
		h.channels = append(h.channels, make([]*channel, more)...)
	}
	h.channels[ns.Slot] = ch
	h.opened++
	return ch
}

// channel returns the channel of ns on this reactor, nil if there is none.
func (h *Handler) channel(ns *namespaces.Namespace) *channel {
	if ns.Slot < len(h.channels) {
		// the slot of a retired namespace may have another owner
		if ch := h.channels[ns.Slot]; ch != nil && ch.ns == ns {
			return ch
		}
	}
	return nil
}

// drop closes the channel of a retired namespace once its IOs have finished, and then calls done.
func (ch *channel) drop(done func()) {
	h := ch.h
	h.shares.Drop(&ch.shares, h.gate, h.admit, func() {
		ch.Close(func() {
			h.channels[ch.ns.Slot] = nil
			h.opened--
			h.stopTimeoutsIfIdle()
			done()
		})
	})
}

// Submit implements compound.Channel.
func (ch *channel) Submit(io *backend.IO) nvme.Status {
	if ch.ns.Geometry().Unready {
		return notReady
	}
	if !ch.h.submit(ch, io) {
		return invalidNamespace
	}
	return nvme.Success
}

// Orphaned implements compound.Channel.
func (ch *channel) Orphaned(io *backend.IO) {
	ch.Channel.Orphaned(io)
	ch.ns.Orphaned(ch.h.post)
}

// OrphanBack implements compound.Channel.
func (ch *channel) OrphanBack() {
	ch.ns.Returned()
	ch.Channel.OrphanBack()
}

// queueOf returns the queue that an IO works for, nil if its command was given up.
func queueOf(io *backend.IO) *session {
	switch o := io.Owner.(type) {
	case *cmd:
		if o.req != nil {
			return o.s
		}
	case *compound.IO:
		if c, ok := o.Compound.Command.(*cmd); ok {
			return c.s
		}
	}
	return nil
}

// ioDone passes a finished IO to its command.
func (h *Handler) ioDone(io *backend.IO) {
	st := nvme.Success
	switch o := io.Owner.(type) {
	case *cmd:
		if io.Err != nil {
			st = o.ch.failed(io)
		}
		switch {
		case o.req == nil:
			o.takeBack(h)
		case st == notReady:
			h.finishLater(o)
		default:
			h.finish(o, 0, st)
		}
	case *compound.IO:
		if io.Err != nil {
			st = o.Channel.(*channel).failed(io)
		}
		o.Done(st)
	}
}

// Check implements dispatch.Storage.
func (ns storage) Check(io *backend.IO) error {
	s, g := queueOf(io), ns.Geometry()
	if s != nil && !ns.Attributes().Visible(s.ctrl.HostNQN) {
		return controllers.ErrHidden
	}
	switch end := g.Size(); {
	case g.Info.Offline:
		return backend.ErrOffline
	case io.Op == backend.OpFlush && g.Info.Degraded: // the device may have been opened again
		return backend.ErrDegraded
	case io.Op == backend.OpFlush || io.Op == backend.OpRead && io.Off+io.Len <= end:
		return nil
	case io.Off+io.Len > end:
		return backend.ErrOutOfRange
	case g.ReadOnly:
		return backend.ErrReadOnly
	}
	if s != nil && g.Info.VolatileCache && s.ctrl.WriteThrough.Load() &&
		io.Op != backend.OpDiscard {
		io.Flags |= backend.FUA
	}
	return nil
}
