package target

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// lingerAfterShutdown is how long an association outlives a finished shutdown (Base section 3.6.2:
// at least two minutes).
const lingerAfterShutdown = int64(120e9)

// controller is one association of a host with a subsystem. It lives on the reactor of its admin
// queue.
type controller struct {
	t       *Target
	sub     *subsystem
	h       *Handler // the admin queue's
	admin   *session
	info    *fabric.QueueInfo
	cntlid  uint16
	hostNQN string
	hostID  [16]byte

	// Read by the I/O queues.
	ready atomic.Bool // enabled, not resetting, not shutting down, not failed
	// completed writes must be durable: WCE is 0, or the host was told that there is no cache
	writeThrough atomic.Bool

	errors errorLog

	mu      sync.Mutex // guards what follows; never held while calling out
	queues  map[uint16]*session
	granted int // I/O queues the host may connect
	dead    bool
	gone    bool // the admin queue has ended

	// What follows belongs to the admin reactor.
	cc     nvme.CC
	csts   nvme.CSTS
	vwc    bool // Identify tells of a volatile cache
	after  pending
	linger func()

	features [256]uint32
	alive    keepAliveTimer
	events   events
	aborts   int // Abort commands under way
	changed  changedNamespaces
	catalog  *catalog
}

// pending is what happens when the last I/O queue is gone.
type pending uint8

const (
	pendingReset    pending = 1 << iota // CSTS.RDY becomes 0
	pendingShutdown                     // CSTS.SHST becomes 10b
)

// newController makes the controller of an admin queue; it is not visible to anyone yet.
func newController(s *session, sub *subsystem, hostNQN string, hostID [16]byte) *controller {
	c := &controller{
		t: s.h.t, sub: sub, h: s.h, admin: s, info: s.info, hostNQN: hostNQN, hostID: hostID,
		queues: make(map[uint16]*session), granted: sub.cfg.MaxIOQueues,
	}
	c.resetFeatures()
	return c
}

// entries is the size of the controller's queues: CAP.MQES+1.
func (c *controller) entries() int { return min(c.sub.cfg.MaxQueueSize, max(c.info.MaxDepth, 2)) }

// describe may be called by any goroutine.
func (c *controller) describe() ControllerInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.queues)
	if !c.gone {
		n++
	}
	return ControllerInfo{
		CNTLID: c.cntlid, SubNQN: c.sub.nqn, HostNQN: c.hostNQN, HostID: c.hostID,
		Transport: c.info.Transport,
		Remote:    c.info.Remote.String(), Discovery: c.sub.discovery, Queues: n,
		Ready: c.ready.Load(),
	}
}

// attach makes s the I/O queue qid, or says why not. Reactor of s.
func (c *controller) attach(s *session, qid uint16) nvme.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead || !c.ready.Load():
		return nvme.ConnectInvalidParameters
	case int(qid) > c.granted:
		return nvme.ConnectInvalidParameters
	case c.queues[qid] != nil:
		return nvme.CommandSequenceError // the first queue stays
	}
	c.queues[qid] = s
	return nvme.Success
}

// fail ends the association: every queue is disconnected. Any goroutine may call it, any number of
// times.
func (c *controller) fail(why error) {
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return
	}
	c.dead = true
	c.ready.Store(false)
	list := c.ioQueues()
	c.mu.Unlock()
	disconnectSessions(append(list, c.admin), why)
}

// ioQueues lists the I/O queues. The caller holds c.mu.
func (c *controller) ioQueues() []*session {
	list := make([]*session, 0, len(c.queues)+1)
	for _, s := range c.queues {
		list = append(list, s)
	}
	return list
}

// disconnectSessions ends queues, each on its own reactor.
func disconnectSessions(list []*session, why error) {
	for _, s := range list {
		s.h.post(func() { s.disconnect(why) })
	}
}

// adminClosed is called when the transport closes the admin queue.
func (c *controller) adminClosed() {
	c.stopTimers()
	c.fail(errors.New("the admin queue is gone"))
	c.abortEvents()
}

func (c *controller) stopTimers() {
	c.alive.stop()
	c.stopLinger()
}

func (c *controller) stopLinger() {
	if c.linger != nil {
		c.linger()
		c.linger = nil
	}
}

// sessionEnded is called on the reactor of a queue that has ended, with no command left.
func (c *controller) sessionEnded(s *session) {
	c.mu.Lock()
	if s.qid == 0 {
		c.gone = true
	} else {
		delete(c.queues, s.qid)
	}
	last := len(c.queues) == 0
	free := last && c.gone
	c.mu.Unlock()
	switch {
	case free:
		c.sub.release(c)
		s.h.note("controller gone", "subsystem", c.sub.nqn, "cntlid", c.cntlid, "host", c.hostNQN)
	case last && s.qid != 0:
		c.h.post(c.queuesGone)
	}
}

// dropQueues disconnects the I/O queues; then happens when they are gone. Admin reactor.
func (c *controller) dropQueues(then pending, why string) {
	c.mu.Lock()
	c.ready.Store(false)
	list := c.ioQueues()
	c.mu.Unlock()
	c.after |= then
	disconnectSessions(list, errors.New(why))
	if len(list) == 0 {
		c.queuesGone()
	}
}

// queuesGone carries on a reset or shutdown when no I/O queue is left: the message may be about
// queues of earlier.
func (c *controller) queuesGone() {
	c.mu.Lock()
	left := len(c.queues)
	c.mu.Unlock()
	if left > 0 {
		return
	}
	then := c.after
	c.after = 0
	if then&pendingReset != 0 {
		c.csts &^= nvme.CSTSReady
	}
	if then&pendingShutdown != 0 {
		c.csts = c.csts&^nvme.CSTSShutdownOccurring | nvme.CSTSShutdownComplete
		c.linger = c.h.after(lingerAfterShutdown, func() {
			c.linger = nil
			c.fail(errors.New("the host shut the controller down and left the association open"))
		})
	}
}

// configure carries out a write of CC (Base section 3.1.4.5), or refuses it and changes nothing.
func (c *controller) configure(v nvme.CC) nvme.Status {
	old := c.cc
	switch {
	case v.Reserved() != 0 || v.CSS() != nvme.CSSNVM || v.MPS() != 0 || v.AMS() != 0 ||
		v.SHN() == 3 || v.CRIME():
		return invalidField
	case v.EN() && !c.sub.discovery && (v.IOSQES() != 6 || v.IOCQES() != 4):
		return invalidField // entries of 64 and 16 bytes; discovery controllers have no I/O queues
	case v.EN() && !old.EN() && c.after != 0:
		return sequenceError // the reset or shutdown is not finished
	}
	c.cc = v
	switch {
	case v.EN() && !old.EN():
		c.enable()
	case !v.EN() && old.EN():
		c.reset()
	}
	if v.SHN() != 0 && old.SHN() == 0 {
		c.shutdown()
	}
	return nvme.Success
}

func (c *controller) enable() {
	c.vwc = c.sub.namespaces.Load().volatile()
	c.writeThrough.Store(!c.vwc)
	c.stopLinger()
	c.csts = c.csts&^(nvme.CSTSShutdownOccurring|nvme.CSTSShutdownComplete) | nvme.CSTSReady
	c.mu.Lock()
	if !c.dead {
		c.ready.Store(true)
	}
	c.mu.Unlock()
}

// reset is a Controller Reset: CC.EN from 1 to 0 (Base section 3.7.2). The admin queue and the keep
// alive timer survive it.
func (c *controller) reset() {
	c.stopLinger()
	c.csts &^= nvme.CSTSShutdownOccurring | nvme.CSTSShutdownComplete
	c.after &^= pendingShutdown
	c.abortEvents()
	c.events = events{}
	c.changed = changedNamespaces{}
	c.resetFeatures()
	c.mu.Lock()
	c.granted = c.sub.cfg.MaxIOQueues
	c.mu.Unlock()
	c.dropQueues(pendingReset, "the host reset the controller")
}

func (c *controller) shutdown() {
	c.csts |= nvme.CSTSShutdownOccurring
	c.dropQueues(pendingShutdown, "the host shut the controller down")
}

// started logs a new association.
func (c *controller) started() {
	c.h.note("controller created", "subsystem", c.sub.nqn, "cntlid", c.cntlid, "host", c.hostNQN,
		"transport", c.info.Transport,
		"remote", c.info.Remote, "keepalive", time.Duration(c.alive.period))
}

// propertyGet answers a Property Get (Base section 6.5).
func propertyGet(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	p := cm.req.SQE.Property()
	var v uint64
	switch p.Offset() {
	case nvme.PropertyCAP:
		v = uint64(nvme.MakeCAP(c.entries(), readyTimeout, nvme.CAPCSSNVM|nvme.CAPCRMSMedia))
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

// readyTimeout is CAP.TO and CRTO.CRWMT in units of 500 ms: a reset waits for the backends.
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

// propertySet carries out a Property Set of CC (Base section 6.6).
func propertySet(h *Handler, cm *cmd) {
	h.finish(cm, 0, cm.s.ctrl.configure(nvme.CC(cm.req.SQE.Property().Value())))
}
