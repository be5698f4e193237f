package target

import (
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// prepareReservation checks a Reservation Register, Acquire or Release command as far as that is
// possible without the keys. Hosts may send more data than the command has. The namespace need not
// be ready: a host can be preempted while the storage hangs.
func prepareReservation(c *cmd) nvme.Status {
	q := c.req.SQE.Reservation()
	need, valid := uint32(len(nvme.ReservationKeys{})), false
	switch c.req.SQE.Opcode() {
	case nvme.IOReservationRegister:
		valid = q.Action() <= nvme.ReservationReplace && (q.CPTPL() == nvme.KeepPTPL ||
			q.CPTPL() == nvme.ClearPTPL || q.CPTPL() == nvme.SetPTPL && c.s.h.t.store != nil)
	case nvme.IOReservationAcquire:
		valid = q.Action() <= nvme.ReservationPreemptAndAbort && !q.IEKEY() &&
			q.Type() >= nvme.WriteExclusive && q.Type() <= nvme.ExclusiveAccessAllRegistrants
	default:
		need = nvme.ReservationReleaseSize
		valid = q.Action() <= nvme.ReservationClear && !q.IEKEY()
	}
	n := c.req.HostLength
	switch {
	case c.namespace() == nil:
		return noNamespace(c.req.SQE.NSID())
	case !valid:
		return invalidField // Base sections 7.5 to 7.7
	case n < need || n > nvme.IdentifyDataSize:
		return invalidLength
	}
	return c.expect(n)
}

func executeReservation(h *Handler, c *cmd) {
	ns, sqe := c.namespace(), &c.req.SQE
	if ns == nil { // it was removed meanwhile
		h.finish(c, 0, inactiveNamespace)
		return
	}
	var keys nvme.ReservationKeys
	data := mem.NewCursor(c.req.Segs, 0)
	data.CopyTo(keys[:])
	r := sqe.Reservation()
	q := &reservationRequest{
		op: sqe.Opcode(), host: c.s.ctrl.identity.Value(), action: r.Action(),
		iekey: r.IEKEY(), typ: r.Type(), cptpl: r.CPTPL(), current: keys.Current(),
		other: keys.Other(), known: c.s.ctrl.sub.knows,
	}
	ctrl := c.s.ctrl
	abort := q.op == nvme.IOReservationAcquire && q.action == nvme.ReservationPreemptAndAbort
	h.change(c, []*namespace{ns}, abort, func(r *Reservations) (outcome, nvme.Status) {
		o, st := r.apply(q)
		if q.full != nil {
			ctrl.peerLog().Warn("reservation register refused", "subsystem", ctrl.sub.nqn, "nsid",
				ns.nsid, "host", ctrl.hostNQN, "err", q.full, "hint",
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
		return noNamespace(c.req.SQE.NSID())
	case !q.EDS():
		return nvme.HostIDInconsistent | nvme.DNR
	case n > uint64(c.s.ctrl.cfg.MaxTransfer):
		return invalidField
	default:
		return c.expect(uint32(n))
	}
}

// executeReport reports one structure for each registrant. CNTLID is that of dynamic controllers,
// as in nvmet and SPDK: a host may have several.
func executeReport(h *Handler, c *cmd) {
	ns := c.namespace()
	if ns == nil {
		h.finish(c, 0, inactiveNamespace)
		return
	}
	r := ns.reservations.now.Load()
	s := &nvme.ReservationStatus{
		GEN: r.Generation, RTYPE: r.Type, REGCTL: uint16(len(r.Registrants)),
	}
	if r.PTPL {
		s.PTPLS = 1
	}
	b := nvme.Append(nil, s)
	for _, g := range r.Registrants {
		e := &nvme.RegisteredController{
			CNTLID: nvme.CNTLIDDynamic, RKEY: g.Key, HostID: g.HostID,
		}
		if r.holds(g.HostIdentity) {
			e.RCSTS = 1
		}
		b = nvme.Append(b, e)
	}
	h.reply(c, 0, reply{data: b}, 0)
}

// reservationMask and reservationPTPL are features 82h and 83h (Base sections 5.1.25.1.29 and
// 5.1.25.1.30), which each namespace has of its own.
func reservationMask(ns *namespace) uint32 { return ns.reservations.mask.Load() }

func setReservationMask(h *Handler, c *cmd, list []*namespace, v uint32) {
	if v&^nvme.ReservationMaskAll != 0 {
		h.finish(c, 0, invalidField)
		return
	}
	for _, ns := range list {
		ns.reservations.mask.Store(v)
	}
	h.finish(c, 0, nvme.Success)
}

func reservationPTPL(ns *namespace) uint32 {
	if ns.reservations.now.Load().PTPL {
		return 1
	}
	return 0
}

func setReservationPTPL(h *Handler, c *cmd, list []*namespace, v uint32) {
	if v > 1 || v == 1 && h.t.store == nil {
		h.finish(c, 0, invalidField)
		return
	}
	for o := range h.changing.list.All() {
		if o.s == c.s && len(list) > 1 { // one command for many namespaces at a time
			h.finish(c, 0, nvme.CommandInterrupted)
			return
		}
	}
	h.change(c, list, false, func(r *Reservations) (outcome, nvme.Status) {
		next := *r
		next.PTPL = v == 1
		return outcome{next: &next}, nvme.Success
	})
}

// reservationLogSize is how many notifications a controller keeps.
const reservationLogSize = 64

// reservationLog is what log 80h is made of. It belongs to the admin reactor.
type reservationLog struct {
	count uint64
	queue []nvme.ReservationLog
}

// add appends a notification. One that is lost is counted in the last one (Base section
// 5.1.12.1.32).
func (l *reservationLog) add(typ nvme.ReservationNotification, nsid uint32) {
	if l.count++; l.count == 0 {
		l.count = 1
	}
	if len(l.queue) == reservationLogSize {
		l.queue[len(l.queue)-1].Count = l.count
		return
	}
	l.queue = append(l.queue, nvme.ReservationLog{Count: l.count, Type: typ, NSID: nsid})
}

// notifyReservation records a notification and reports it. Admin reactor.
func (c *controller) notifyReservation(typ nvme.ReservationNotification, nsid uint32) {
	if !c.ready.Load() {
		return // the next Controller Level Reset would clear it
	}
	c.reservationLog.add(typ, nsid)
	c.raise(eventReservation)
}

// reservationPage makes log 80h: the oldest notification, which is removed.
func reservationPage(c *controller, _ *nvme.SQE) reply {
	l := &c.reservationLog
	var page nvme.ReservationLog
	if len(l.queue) > 0 {
		page, l.queue = l.queue[0], l.queue[1:]
		page.Available = uint8(len(l.queue))
	}
	return reply{data: nvme.Append(nil, &page)}
}
