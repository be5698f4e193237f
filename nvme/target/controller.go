package target

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// disabledLimit is how long an association may last while its controller is not enabled, in
// nanoseconds: after Connect, after a reset, and after a completed shutdown, where it lasts for at
// least two minutes (Base section 3.6.2). Hosts enable a controller as soon as they have connected,
// discovery controllers as well.
const disabledLimit = int64(120e9)

// controller is one association of a host with a subsystem. It belongs to the reactor of its admin
// queue.
type controller struct {
	t        *Target
	sub      *subsystem
	cfg      *settings // as when it was created
	h        *Handler  // the admin queue's
	admin    *session
	info     *fabric.QueueInfo
	cntlid   uint16
	hostNQN  string
	calledAs string // the name of the subsystem in Connect: discovery may have two
	hostID   [16]byte
	identity reservation.HostHandle // of hostID and hostNQN
	created  time.Time
	gone     chan struct{} // closed when all queues have ended and the subsystem lists it no more

	// The I/O queues read these.
	ready atomic.Bool // enabled, not resetting, not shutting down, not failed
	// writeThrough: completed writes must be durable, because WCE is 0, or because Identify has
	// reported no cache.
	writeThrough atomic.Bool
	discard      atomic.Bool // Dataset Management is offered

	authenticates bool        // the host had a key when it connected
	dumped        atomic.Bool // what was recorded of a queue was kept, see session.dumpFailed
	proven        atomic.Bool // the host has authenticated, or had no key
	// generated is the PSK that generatedPSKs.use has counted the controller for, or nil.
	generated *generatedPSK

	errors admin.ErrorLog

	mu         sync.Mutex // guards what follows; never held while calling out
	queues     map[uint16]*session
	granted    int   // I/O queues the host may connect
	failed     error // why the association has ended or is about to; nil: it does not
	adminEnded bool

	// The rest belongs to the admin reactor.
	cc         nvme.CC
	csts       nvme.CSTS
	cached     bool // Identify reports a volatile cache
	rotational bool // Identify reports endurance groups, see identifyIndependent
	pending    pending
	stopLimit  func() // stops the timer of disabledLimit, nil if it does not run

	features       [256]uint32
	thresholds     admin.Thresholds
	beyondLimit    bool   // a threshold is reached
	warned         uint8  // warnings of the drives at the last checkHealth
	temperature    uint16 // the highest of the drives then, in kelvin; 0: unknown
	clock          admin.Clock
	hostBehavior   admin.HostBehavior
	copyFormats    atomic.Uint32 // CDFE of that, for other reactors
	alive          keepAliveTimer
	again          reauthentication
	events         events
	aborts         int  // Abort commands in progress
	protecting     bool // a write protection changes
	changed        admin.ChangedNamespaces
	reservationLog reservation.Log
	selfTest       selfTest
	telemetry      admin.Telemetry
	ana            ana.Log
	anaStale       bool // namespaces have changed since the log was made
	discoveryLogs  discovery.Logs
}

// pending is what happens when the last I/O queue has ended.
type pending uint8

const (
	pendingReset    pending = 1 << iota // CSTS.RDY becomes 0
	pendingShutdown                     // CSTS.SHST becomes 10b
)

// newController makes the controller of an admin queue; the subsystem does not list it yet.
func newController(s *session, sub *subsystem, hostNQN string, hostID [16]byte) *controller {
	cfg := sub.settings.Load()
	c := &controller{
		t: s.h.t, sub: sub, cfg: cfg, h: s.h, admin: s, info: s.info, hostNQN: hostNQN,
		hostID: hostID, identity: unique.Make(reservation.Host{HostID: hostID, NQN: hostNQN}),
		gone: make(chan struct{}), created: time.Now(),
		queues: make(map[uint16]*session), granted: cfg.MaxIOQueues,
	}
	c.events.Discovery = sub.discovery
	c.telemetry.Query = admin.Query[[]byte]{Ask: c.capture, Age: admin.TelemetryAge}
	c.resetFeatures()
	return c
}

// entries is the size of the controller's queues: CAP.MQES+1.
func (c *controller) entries() int { return min(c.cfg.MaxQueueSize, max(c.info.MaxDepth, 2)) }

// adminEntries is the largest size of its admin queue. MQES of a discovery controller says more,
// because Linux warns if it is less than what is asked for I/O queues.
func (c *controller) adminEntries() int {
	if c.sub.discovery {
		return MinQueueSize
	}
	return c.entries()
}

// describe may be called by any goroutine.
func (c *controller) describe() ControllerInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.queues)
	if !c.adminEnded {
		n++
	}
	return ControllerInfo{
		CNTLID: c.cntlid, SubNQN: c.sub.nqn, HostNQN: c.hostNQN, HostID: c.hostID,
		Transport: c.info.Transport, Remote: c.info.Remote.String(), Discovery: c.sub.discovery,
		Queues: n, Ready: c.ready.Load(),
	}
}

// attach makes s the I/O queue qid, or says why not. One whose host has yet to authenticate may be
// anybody's and takes no place: it is attached afterwards. Reactor of s.
func (c *controller) attach(s *session, qid uint16) refusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	refuse := func(expected, received any) refusal {
		return refusal{
			st: connectRefused, field: nvme.InvalidInCommand(nvme.ConnectOffsetQID),
			expected: expected, received: received,
		}
	}
	switch {
	case c.failed != nil || !c.ready.Load():
		return refuse("a controller that is enabled", "one that is not")
	case int(qid) > c.granted:
		return refuse(fmt.Sprintf("1 to %d", c.granted), qid)
	case c.queues[qid] != nil: // the first queue stays
		return refusal{
			st: nvme.CommandSequenceError, expected: "a queue ID that is free", received: qid,
		}
	}
	if !s.unproven() {
		c.queues[qid] = s
		s.asking = c.again.ask.Load() != 0
	}
	return refusal{}
}

// fail ends the association: every queue is disconnected. Any goroutine may call it, any number of
// times.
func (c *controller) fail(why error) {
	c.mu.Lock()
	if c.failed != nil {
		c.mu.Unlock()
		return
	}
	c.failed = why
	c.ready.Store(false)
	list := c.ioQueues()
	c.mu.Unlock()
	disconnectSessions(append(list, c.admin), why)
}

// ioQueues lists the I/O queues. The caller holds c.mu.
func (c *controller) ioQueues() []*session { return slices.Collect(maps.Values(c.queues)) }

// disconnectSessions ends queues, each on its own reactor.
func disconnectSessions(list []*session, why error) {
	for _, s := range list {
		s.h.post(func() { s.disconnect(why) })
	}
}

// stopIO ends what the queues do at devices.
func (c *controller) stopIO() {
	c.mu.Lock()
	list := append(c.ioQueues(), c.admin) // which reads for self-tests
	c.mu.Unlock()
	for _, s := range list {
		s.h.post(s.stop)
	}
}

// adminClosed is called when the transport closes the admin queue.
func (c *controller) adminClosed() {
	c.alive.stop()
	c.again.stop()
	c.selfTest.close()
	switch {
	case c.admin.why != nil:
		c.fail(c.admin.why)
	case c.csts.SHST() != 0:
		c.fail(errors.New("the host shut it down"))
	default:
		c.fail(&failure{"the connection of the admin queue has ended"})
	}
	c.endLimit()
	c.abortEvents()
}

// startLimit starts the timer of disabledLimit, from the beginning if it runs.
func (c *controller) startLimit() {
	c.endLimit()
	c.mu.Lock()
	failed := c.failed != nil
	c.mu.Unlock()
	if failed {
		return // the association ends anyway
	}
	c.stopLimit = c.h.after(disabledLimit, func() {
		c.stopLimit = nil
		c.peerLog().Warn("controller was not enabled in time", "subsystem", c.sub.nqn, "cntlid",
			c.cntlid, "host", c.hostNQN, "timeout", time.Duration(disabledLimit))
		c.fail(&failure{"the controller was not enabled for " +
			time.Duration(disabledLimit).String()})
	})
}

func (c *controller) endLimit() {
	if c.stopLimit != nil {
		c.stopLimit()
		c.stopLimit = nil
	}
}

// sessionEnded is called on the reactor of a queue that has ended, with no command left.
func (c *controller) sessionEnded(s *session) {
	c.mu.Lock()
	switch {
	case s.qid == 0:
		c.adminEnded = true
	case c.queues[s.qid] != s: // it was not attached
		c.mu.Unlock()
		return
	default:
		delete(c.queues, s.qid)
	}
	last, adminEnded, why := len(c.queues) == 0, c.adminEnded, c.failed
	c.mu.Unlock()
	switch {
	case last && adminEnded:
		c.sub.remove(c)
		args := []any{
			"subsystem", c.sub.nqn, "cntlid", c.cntlid, "host", c.hostNQN, "reason", why,
			"duration", time.Since(c.created).Round(time.Millisecond),
		}
		if c.dumped.Load() {
			args = append(args, "hint", dumpHint)
		}
		c.peerLog().Info("controller removed", args...)
	case last && s.qid != 0:
		c.h.post(c.ioQueuesEnded)
	}
}

// dropQueues disconnects the I/O queues. Once all have ended, ioQueuesEnded does what then says.
// Admin reactor.
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

// enable makes the controller ready. What Identify Controller reports of the namespaces is decided
// here: it does not change while the controller is enabled.
func (c *controller) enable() {
	list := c.namespaces()
	is := func(has func(*geometry) bool) bool {
		return slices.ContainsFunc(list, func(ns *namespace) bool { return has(ns.geo.Load()) })
	}
	c.cached = is(func(g *geometry) bool { return g.info.VolatileCache })
	c.writeThrough.Store(!c.cached)
	c.rotational = is(func(g *geometry) bool { return g.info.Rotational })
	c.discard.Store(len(list) == 0 || is(func(g *geometry) bool { return g.info.Discard }))
	c.endLimit()
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
	c.changed, c.reservationLog = admin.ChangedNamespaces{}, reservation.Log{}
	c.ana, c.anaStale = ana.Log{}, false
	c.selfTest.reset()
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

func (c *controller) logCreated() {
	c.peerLog().Info("controller created", "subsystem", c.sub.nqn, "cntlid", c.cntlid,
		"host", c.hostNQN, "transport", c.info.Transport, "timeout", time.Duration(c.alive.period))
}

// peerLog logs what the host of the controller has caused.
func (c *controller) peerLog() ratelog.Peer {
	log := c.t.hostLog
	if c.sub.discovery || !c.proven.Load() {
		log = c.t.strangerLog
	}
	return log.Peer(c.info.Remote)
}
