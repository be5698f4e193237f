package target

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// readyTimeout is CAP.TO and CRTO.CRWMT in units of 500 ms: a reset waits for the devices.
const readyTimeout = 40

// prepareProperty validates offset, size and, for Property Set, that the property can be written.
func prepareProperty(cm *cmd) nvme.Status {
	p := cm.req.SQE.Property()
	switch off := p.Offset(); off {
	case nvme.PropertyCAP, nvme.PropertyVS, nvme.PropertyCSTS, nvme.PropertyCRTO:
		if cm.req.SQE.FabricsType() == nvme.FabricsPropertySet {
			return invalidField // read-only
		}
		fallthrough
	case nvme.PropertyCC:
		if p.Size() != off.Size() {
			return invalidField
		}
	default:
		return invalidField
	}
	return cm.expect(0)
}

// propertyGet answers a Property Get (Base section 6.5).
func propertyGet(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	var v uint64
	switch cm.req.SQE.Property().Offset() {
	case nvme.PropertyCAP:
		v = uint64(nvme.MakeCAP(c.entries(), readyTimeout, c.commandSets()|nvme.CAPCRMSMedia))
	case nvme.PropertyVS:
		v = uint64(version)
	case nvme.PropertyCC:
		v = uint64(c.cc)
	case nvme.PropertyCSTS:
		v = uint64(c.csts)
	case nvme.PropertyCRTO:
		v = uint64(nvme.MakeCRTO(readyTimeout, 0))
	}
	h.finish(cm, v, nvme.Success)
}

// propertySet carries out a Property Set of CC (Base section 6.6).
func propertySet(h *Handler, cm *cmd) {
	h.finish(cm, 0, cm.s.ctrl.configure(nvme.CC(cm.req.SQE.Property().Value())))
}

// disabledLimit is how long an association may last while its controller is not enabled, in
// nanoseconds: after Connect, after a reset, and after a completed shutdown, where it lasts for at
// least two minutes (Base section 3.6.2). Hosts enable a controller as soon as they have connected,
// discovery controllers as well.
const disabledLimit = int64(120e9)

// registers are the properties of a controller, and the state that follows from its last enabling.
type registers struct {
	// I/O queues read ready, writeThrough and discard.
	ready atomic.Bool // enabled, not resetting, not shutting down, not failed
	// writeThrough: completed writes must be durable, because WCE is 0, or because Identify has
	// reported no cache.
	writeThrough atomic.Bool
	discard      atomic.Bool // Dataset Management is offered

	// The rest belongs to the admin reactor.
	cc         nvme.CC
	csts       nvme.CSTS
	cached     bool // Identify reports a volatile cache
	rotational bool // Identify reports endurance groups, see identifyIndependent
	pending    pending
	limit      timer // of disabledLimit
}

// pending is the set of steps to take when the last I/O queue has ended.
type pending uint8

const (
	pendingReset    pending = 1 << iota // CSTS.RDY becomes 0
	pendingShutdown                     // CSTS.SHST becomes 10b
)

// startLimit starts the timer of disabledLimit, from the beginning if it runs.
func (c *controller) startLimit() {
	c.limit.stop()
	c.mu.Lock()
	failed := c.failed != nil
	c.mu.Unlock()
	if failed {
		return // the association ends anyway
	}
	c.limit.set(c.h, disabledLimit, func() {
		c.peerLog().Warn("controller was not enabled in time", "subsystem", c.sub.nqn, "cntlid",
			c.cntlid, "host", c.hostNQN, "timeout", time.Duration(disabledLimit))
		c.fail(&failure{"the controller was not enabled for " +
			time.Duration(disabledLimit).String()})
	})
}

// dropQueues disconnects the I/O queues. When all have ended, ioQueuesEnded takes the steps in
// then. Admin reactor.
func (c *controller) dropQueues(then pending, why string) {
	c.mu.Lock()
	c.ready.Store(false)
	list := c.ioQueues()
	c.mu.Unlock()
	c.pending |= then
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
	then := c.pending
	c.pending = 0
	if then&pendingReset != 0 {
		c.csts &^= nvme.CSTSReady
	}
	if then&pendingShutdown != 0 {
		c.csts = c.csts&^nvme.CSTSShutdownOccurring | nvme.CSTSShutdownComplete
		c.startLimit()
	}
}

// configure carries out a write of CC (Base section 3.1.4.5), or refuses it and changes nothing.
func (c *controller) configure(v nvme.CC) nvme.Status {
	old := c.cc
	switch {
	case v.Reserved() != 0 || v.SHN() == 3 || v.CRIME():
		return invalidField
	case !v.EN() || old.EN():
	case c.pending != 0:
		return sequenceError // the reset or shutdown has not completed
	// Only now do these fields matter (Base section 3.1.4.5): a host may write them step by step.
	case !c.selectable(v.CSS()) || v.MPS() != 0 || v.AMS() != 0:
		return invalidField
	case !c.sub.discovery && (v.IOSQES() != 6 || v.IOCQES() != 4):
		return invalidField // entries of 64 and 16 bytes; discovery controllers have no I/O queues
	}
	c.cc = v
	switch {
	case v.EN() && !old.EN():
		c.enable()
	case !v.EN() && old.EN():
		c.reset()
	}
	if v.SHN() != 0 && old.SHN() == 0 && c.csts.SHST() == 0 {
		c.shutdown() // once: after it only a reset clears SHST (Base section 3.6.2)
	}
	return nvme.Success
}

// enable makes the controller ready. It decides the properties of the namespaces that Identify
// Controller reports: they do not change while the controller is enabled.
func (c *controller) enable() {
	list := c.namespaces()
	is := func(has func(*geometry) bool) bool {
		return slices.ContainsFunc(list, func(ns *namespace) bool { return has(ns.geo.Load()) })
	}
	c.cached = is(func(g *geometry) bool { return g.info.VolatileCache })
	c.writeThrough.Store(!c.cached)
	c.rotational = is(func(g *geometry) bool { return g.info.Rotational })
	c.discard.Store(len(list) == 0 || is(func(g *geometry) bool { return g.info.Discard }))
	c.limit.stop()
	c.csts = c.csts&^(nvme.CSTSShutdownOccurring|nvme.CSTSShutdownComplete) | nvme.CSTSReady
	c.mu.Lock()
	if c.failed == nil {
		c.ready.Store(true)
	}
	c.mu.Unlock()
}

// reset is a Controller Reset: CC.EN from 1 to 0 (Base section 3.7.2). The admin queue and the keep
// alive timer survive it.
func (c *controller) reset() {
	c.csts &^= nvme.CSTSShutdownOccurring | nvme.CSTSShutdownComplete
	c.pending &^= pendingShutdown
	c.abortEvents()
	c.events.Reset()
	c.logs.reset()
	c.resetFeatures()
	c.mu.Lock()
	c.granted = c.cfg.MaxIOQueues
	c.mu.Unlock()
	c.peerLog().Info("controller reset", "subsystem", c.sub.nqn, "cntlid", c.cntlid, "host",
		c.hostNQN)
	c.dropQueues(pendingReset, "the host reset the controller")
}

func (c *controller) shutdown() {
	c.csts |= nvme.CSTSShutdownOccurring
	c.dropQueues(pendingShutdown, "the host shut the controller down")
}
