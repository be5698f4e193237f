package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// asyncLimit is AERL+1: how many Asynchronous Event Requests a host may have outstanding.
const asyncLimit = 4

// events are the asynchronous events of a controller, and the requests that wait for them.
type events struct {
	admin.Events
	requests []*cmd
}

// raise reports an event if the host has enabled it.
func (c *controller) raise(k admin.EventKind) {
	c.events.Raise(k)
	c.sendEvents()
}

// sendEvents completes requests with waiting events.
func (c *controller) sendEvents() {
	for e := &c.events; len(e.requests) > 0; {
		event, ok := e.Next()
		if !ok {
			return
		}
		r := e.requests[0]
		e.requests = slices.Delete(e.requests, 0, 1)
		c.h.finish(r, uint64(event), nvme.Success)
	}
}

// abortEvents completes the outstanding requests because the controller is reset or the queue has
// ended.
func (c *controller) abortEvents() {
	requests := c.events.requests
	c.events.requests = nil
	for _, r := range requests {
		c.h.finish(r, 0, nvme.AbortRequested)
	}
}

// asyncEventRequest holds the command until there is an event.
func asyncEventRequest(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	if len(c.events.requests) >= asyncLimit {
		h.finish(cm, 0, nvme.AERLimitExceeded|nvme.DNR)
		return
	}
	c.events.requests = append(c.events.requests, cm)
	c.sendEvents()
}

// notice passes a notice of a namespace to the host. Admin reactor.
func (c *controller) notice(n namespaces.Notice, nsid uint32) {
	switch n {
	case namespaces.Changed:
		c.namespaceChanged(nsid)
	case namespaces.Regroups:
		c.gatherANA(c.anaChanged)
	case namespaces.Degrades:
		c.raise(admin.EventReliability)
	}
}

func (c *controller) namespaceChanged(nsid uint32) {
	c.changed.Add(nsid)
	c.raise(admin.EventNamespace)
	if c.ana.Changes() > 0 && !c.anaStale {
		c.anaStale = true
		// Once for all that are added or removed together.
		c.h.post(func() { c.gatherANA(c.namespacesChanged) })
	}
}

// namespacesChanged reports that log 0Ch is another one because of that.
func (c *controller) namespacesChanged(now []nvme.ANAGroup) {
	if c.anaStale = false; c.ana.Refresh(now) {
		c.raise(admin.EventANA)
	}
}
