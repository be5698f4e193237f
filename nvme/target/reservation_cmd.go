package target

import (
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// prepareReservation checks a Reservation Register, Acquire or Release command as far as that is
// possible without the keys. Hosts may send more data than the command has. The namespace need not
// be ready: a host can be preempted while the storage hangs.
func prepareReservation(c *cmd) nvme.Status {
	need, valid := reservation.Check(&c.req.SQE, c.s.h.t.shared.Reservations != nil)
	n := c.req.HostLength
	switch {
	case c.namespace() == nil:
		return controllers.NoNamespace(c.req.SQE.NSID())
	case !valid:
		return invalidField // Base sections 7.5 to 7.7
	case n < need || n > nvme.IdentifyDataSize:
		return invalidLength
	}
	return c.expect(n)
}

func executeReservation(h *Handler, c *cmd) {
	ns, ctrl := c.namespace(), c.s.ctrl
	if ns == nil { // it was removed meanwhile
		h.finish(c, 0, inactiveNamespace)
		return
	}
	q := &reservation.Request{
		ReservationSQE: *c.req.SQE.Reservation(), Op: c.req.SQE.Opcode(),
		Host: ctrl.Identity.Value(), Known: func(hostNQN string) bool {
			return h.t.shared.Hosts.Knows(hostNQN, ctrl.sub.Settings.Load())
		},
		Network: subnet.Of(c.s.info.Remote.Addr()),
	}
	data := mem.NewCursor(c.req.Segs, 0)
	data.CopyTo(q.Keys[:])
	list := []*namespaces.Namespace{ns}
	h.change(c, list, func(r *reservation.State) (reservation.Outcome, nvme.Status) {
		o, st := r.Apply(q)
		if q.Full != nil {
			ctrl.PeerLog().Report(event.RegisterRefused, "subsystem", ctrl.sub.NQN, "nsid",
				ns.ID.NSID, "host", ctrl.HostNQN, "err", q.Full, "hint",
				"add the host to hosts in the configuration, or preempt registrants that are gone")
		}
		return o, st
	})
}

// prepareReport checks Reservation Report. Host Identifiers have 128 bits over fabrics, so only the
// extended data structure exists (Base section 7.8).
func prepareReport(c *cmd) nvme.Status {
	q := c.req.SQE.Reservation()
	switch n := q.Bytes(); {
	case c.namespace() == nil:
		return controllers.NoNamespace(c.req.SQE.NSID())
	case !q.EDS():
		return nvme.HostIDInconsistent | nvme.DNR
	case n > uint64(c.s.ctrl.Settings.MaxTransfer):
		return invalidField
	default:
		return c.expect(uint32(n))
	}
}

func executeReport(h *Handler, c *cmd) {
	ns := c.namespace()
	if ns == nil {
		h.finish(c, 0, inactiveNamespace)
		return
	}
	if ns.Reservations.Elsewhere() {
		h.finish(c, 0, nvme.ANAInaccessible)
		return
	}
	h.reply(c, 0, admin.Reply{Data: ns.Reservations.State().Report()}, 0)
}

func setReservationPTPL(h *Handler, c *cmd, list []*namespaces.Namespace, v uint32) {
	if v > 1 || v == 1 && h.t.shared.Reservations == nil {
		h.finish(c, 0, invalidField)
		return
	}
	if len(list) > 1 && c.s.ctrl.changing { // one command for many namespaces at a time
		h.finish(c, 0, nvme.CommandInterrupted)
		return
	}
	h.change(c, list, func(r *reservation.State) (reservation.Outcome, nvme.Status) {
		next := *r
		next.PTPL = v == 1
		return reservation.Outcome{Next: &next}, nvme.Success
	})
}

// Notify implements reservation.User.
func (ns storage) Notify(of func(reservation.Host) nvme.ReservationNotification) {
	ns.Owner.(*subsystem).each(func(c *controller) {
		if typ := of(c.Identity.Value()); typ != 0 && c.Namespace(ns.ID.NSID) != nil {
			c.h.post(func() { c.NotifyReservation(typ, ns.ID.NSID) })
		}
	})
}
