package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
)

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
