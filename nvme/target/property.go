package target

import (
	"errors"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

func prepareProperty(cm *cmd) nvme.Status {
	if st := admin.CheckProperty(&cm.req.SQE); !st.OK() {
		return st
	}
	return cm.expect(0)
}

// propertyGet answers a Property Get.
func propertyGet(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	h.finish(cm, c.Get(cm.req.SQE.Property().Offset(), c.Entries()), nvme.Success)
}

// propertySet carries out a Property Set of CC (Base section 6.6). A write that enables the
// controller needs the properties of all namespaces, and is carried out once these are known. If
// the machine is too busy to find them in time, the command fails and CC stays as it was.
func propertySet(h *Handler, cm *cmd) {
	c, v := cm.s.ctrl, nvme.CC(cm.req.SQE.Property().Value())
	reply := admin.Elsewhere(c.CommonInfo, func(all backend.Info) admin.Reply {
		return c.configure(v, all)
	})
	if !v.EN() || c.CC.EN() {
		reply = c.configure(v, backend.Info{})
	}
	h.reply(cm, 0, reply, 0)
}

// disabledLimit is how long an association may last while its controller is not enabled, in
// nanoseconds: after Connect, after a reset, and after a completed shutdown, where it lasts for at
// least two minutes (Base section 3.6.2). Hosts enable a controller as soon as they have connected,
// discovery controllers as well.
const disabledLimit = int64(120e9)

// startLimit starts or restarts the timer of disabledLimit.
func (c *controller) startLimit() {
	c.limit.stop()
	c.mu.Lock()
	failed := c.failed != nil
	c.mu.Unlock()
	if failed {
		return // the association ends anyway
	}
	c.limit.set(c.h, disabledLimit, func() {
		c.Report(event.ControllerNotEnabled, "timeout", time.Duration(disabledLimit))
		c.fail(&failure{"the controller was not enabled for " +
			time.Duration(disabledLimit).String()})
	})
}

// dropQueues disconnects the I/O queues. When all have ended, ioQueuesEnded completes the reset or
// shutdown. Admin reactor.
func (c *controller) dropQueues(why string) {
	c.mu.Lock()
	c.Ready.Store(false)
	list := c.ioQueues()
	c.mu.Unlock()
	c.startLimit()
	disconnectSessions(list, errors.New(why))
	if len(list) == 0 {
		c.ioQueuesEnded()
	}
}

// ioQueuesEnded completes a reset or shutdown if no I/O queue is left. It may have been posted when
// earlier queues ended, while others have connected since.
func (c *controller) ioQueuesEnded() {
	c.mu.Lock()
	left := len(c.queues)
	c.mu.Unlock()
	if left > 0 {
		return
	}
	if c.QueuesEnded() {
		c.startLimit()
	}
}

// configure carries out a write of CC. all is from CommonInfo if the write may enable the
// controller.
func (c *controller) configure(v nvme.CC, all backend.Info) admin.Reply {
	change, st := c.Write(v)
	if change&admin.Reset != 0 {
		c.reset()
	}
	if change&admin.Shutdown != 0 {
		c.dropQueues("the host shut the controller down")
	}
	if change&admin.Enabled != 0 {
		c.enable(all)
	}
	return admin.Reply{Status: st}
}

// enable makes the controller ready, unless it shuts down.
func (c *controller) enable(all backend.Info) {
	if c.CSTS.SHST() != 0 {
		return
	}
	c.Adopt(all)
	c.limit.stop()
	c.mu.Lock()
	if c.failed == nil {
		c.Ready.Store(true)
	}
	c.mu.Unlock()
}

// reset is a Controller Reset (Base section 3.7.2). Admin queue and keep alive timer survive it.
func (c *controller) reset() {
	c.abortEvents()
	c.Reset()
	c.selfTest.reset()
	c.mu.Lock()
	c.granted = c.Settings.MaxIOQueues
	c.mu.Unlock()
	c.Report(event.ControllerReset)
	c.dropQueues("the host reset the controller")
}
