package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// This file has the admin commands for the state of a controller, see package controllers.

// prepareAdmin checks Identify, Get Log Page, Get Features or Set Features.
func prepareAdmin(c *cmd) nvme.Status {
	n, st := c.s.ctrl.Check(&c.req.SQE, c.req.HostLength)
	if !st.OK() {
		return st
	}
	return c.expect(n)
}

func identify(h *Handler, c *cmd) { h.reply(c, 0, c.s.ctrl.Identify(&c.req.SQE), 0) }

func getLog(h *Handler, c *cmd) {
	r, off := c.s.ctrl.GetLog(&c.req.SQE)
	h.reply(c, 0, r, off)
}

func getFeatures(h *Handler, c *cmd) {
	v, data, st := c.s.ctrl.GetFeatures(&c.req.SQE)
	h.reply(c, uint64(v), admin.Reply{Data: data, Status: st}, 0)
}

func setFeatures(h *Handler, c *cmd) {
	ctrl, sqe := c.s.ctrl, c.req.SQE.Features()
	f, a := ctrl.Feature(sqe.FID()), ctrl.ANAStates()
	if f == nil { // the controller was enabled again while the command waited
		h.finish(c, 0, invalidField)
		return
	}
	if st := f.CheckValue(sqe.Value()); !st.OK() {
		h.finish(c, 0, st)
		return
	}
	h.named(c, func(list []*namespaces.Namespace, all bool) nvme.Status {
		return f.Set(a, list, all, sqe.Value())
	}, func(list []*namespaces.Namespace) {
		switch {
		case !f.Changes:
			data := make([]byte, c.req.Length)
			from := mem.NewCursor(c.req.Segs, 0)
			from.CopyTo(data)
			result, st := f.Apply(&ctrl.Controller, sqe, data)
			h.finish(c, result, st)
		case sqe.FID() == nvme.FeatureWriteProtect:
			setWriteProtection(h, c, list, sqe.Value())
		default:
			setReservationPTPL(h, c, list, sqe.Value())
		}
	})
}

// named calls look, and then, on the reactor, then with the namespaces that the NSID of a command
// names: one, all, or none. All may be thousands: another goroutine looks at them. The command
// completes with the status of look unless that is Success.
func (h *Handler) named(cm *cmd, look func(list []*namespaces.Namespace, all bool) nvme.Status,
	then func(list []*namespaces.Namespace),
) {
	c, nsid := cm.s.ctrl, cm.req.SQE.NSID()
	if nsid != nvme.NSIDAll {
		var list []*namespaces.Namespace
		if ns := c.Namespace(nsid); ns != nil {
			list = []*namespaces.Namespace{ns}
		}
		if st := look(list, false); !st.OK() {
			h.finish(cm, 0, st)
			return
		}
		then(list)
		return
	}
	var list []*namespaces.Namespace
	var st nvme.Status
	h.elsewhere(cm, func() {
		list = c.Namespaces()
		st = look(list, true)
	}, func() {
		switch {
		case cm.s.queue.Over || !c.Ready.Load():
			h.finish(cm, 0, nvme.AbortRequested)
		case !st.OK():
			h.finish(cm, 0, st)
		default:
			then(list)
		}
	})
}

// reply completes a command with the part of a reply from off on. It zeroes the rest of the host's
// buffer: the host must not see earlier contents of the memory.
func (h *Handler) reply(c *cmd, result uint64, r admin.Reply, off uint64) {
	segs := c.req.Segs
	finish := func(r admin.Reply) nvme.Status {
		if !r.Status.OK() {
			return r.Status
		}
		to := mem.NewCursor(segs, 0)
		to.CopyFrom(r.Data[min(off, uint64(len(r.Data))):])
		to.Clear(to.Rest())
		return nvme.Success
	}
	then := func() { h.reply(c, result, r.Build(), off) }
	switch {
	case r.Work != nil:
		h.elsewhere(c, r.Work, then)
	case len(r.Queries) > 0:
		h.await(c, r.Queries, then)
	default:
		h.finish(c, result, finish(r))
	}
}

// sendEvents completes requests with waiting events.
func (c *controller) sendEvents() {
	for len(c.requests) > 0 {
		event, ok := c.Events.Next()
		if !ok {
			return
		}
		r := c.requests[0]
		c.requests = slices.Delete(c.requests, 0, 1)
		c.h.finish(r, uint64(event), nvme.Success)
	}
}

// abortEvents completes the outstanding requests, at a reset or the end of the queue.
func (c *controller) abortEvents() {
	requests := c.requests
	c.requests = nil
	for _, r := range requests {
		c.h.finish(r, 0, nvme.AbortRequested)
	}
}

// asyncEventRequest holds the command until there is an event.
func asyncEventRequest(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	if len(c.requests) >= controllers.AsyncLimit {
		h.finish(cm, 0, nvme.AERLimitExceeded|nvme.DNR)
		return
	}
	c.requests = append(c.requests, cm)
	c.sendEvents()
}

// setWriteProtection changes the write protection of one namespace (FID 84h, Base section
// 5.1.25.1.31), which is the hosts' own, besides read_only of the configuration. The power cycle is
// a restart of the target; nothing is permanent. Before the command completes, the device has
// finished every write that it had, and has none in a volatile cache.
func setWriteProtection(h *Handler, cm *cmd, list []*namespaces.Namespace, v uint32) {
	c, to := cm.s.ctrl, nvme.WriteProtection(v&7)
	switch {
	case len(list) != 1 || cm.req.SQE.NSID() == nvme.NSIDAll:
		h.finish(cm, 0, controllers.NoNamespace(cm.req.SQE.NSID())) // one at a time
		return
	case to >= nvme.PermanentWriteProtect:
		h.finish(cm, 0, invalidField)
		return
	case c.protecting: // the change waits for devices, and one goroutine is enough for that
		h.finish(cm, 0, nvme.CommandInterrupted)
		return
	}
	ns := list[0]
	c.protecting = true
	log := c.PeerLog()
	go func() {
		st := c.Protect(ns, to, log)
		h.post(func() {
			c.protecting = false
			if !st.OK() || to == nvme.NoWriteProtect {
				h.finish(cm, 0, st)
				return
			}
			log.Report(event.WriteProtected, "subsystem", c.sub.NQN, "nsid", ns.ID.NSID,
				"host", c.HostNQN)
			flushThose(h, cm, []*namespaces.Namespace{ns})
		})
	}()
}
