package target

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// controller is one association of a host with a subsystem. It belongs to the reactor of its admin
// queue.
type controller struct {
	t        *Target
	sub      *subsystem
	cfg      *subsystems.Settings // as when it was created
	h        *Handler             // the admin queue's
	admin    *session
	info     *fabric.QueueInfo
	cntlid   uint16
	hostNQN  string
	calledAs string // the name of the subsystem in Connect: discovery may have two
	hostID   [16]byte
	identity reservation.HostHandle // of hostID and hostNQN
	created  time.Time
	gone     chan struct{} // closed when all queues have ended and the subsystem lists it no more
	dumped   atomic.Bool   // the record of a queue was dumped, see session.dumpFailed

	registers
	proof authn.Proof
	queueTable
	featureState
	driveWatch
	logs

	// The rest belongs to the admin reactor.
	alive      keepAliveTimer
	again      reauthentication
	events     events
	aborts     int  // Abort commands in progress
	protecting bool // a write protection changes
}

// queueTable has the I/O queues of a controller.
type queueTable struct {
	mu         sync.Mutex // guards the other fields; never held while calling out
	queues     map[uint16]*session
	granted    int   // I/O queues the host may connect
	failed     error // why the association has ended or is about to; nil: it does not
	adminEnded bool
}

// ioQueues lists the I/O queues. The caller holds mu.
func (t *queueTable) ioQueues() []*session { return slices.Collect(maps.Values(t.queues)) }

// allQueues lists the I/O queues and then the admin queue.
func (c *controller) allQueues() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(c.ioQueues(), c.admin)
}

// newController makes the controller of an admin queue; the subsystem does not list it yet.
func newController(s *session, sub *subsystem, hostNQN string, hostID [16]byte) *controller {
	cfg := sub.settings.Load()
	c := &controller{
		t: s.h.t, sub: sub, cfg: cfg, h: s.h, admin: s, info: s.info, hostNQN: hostNQN,
		hostID: hostID, identity: unique.Make(reservation.Host{HostID: hostID, NQN: hostNQN}),
		gone: make(chan struct{}), created: time.Now(),
		queueTable: queueTable{queues: map[uint16]*session{}, granted: cfg.MaxIOQueues},
	}
	c.events.Discovery, c.registers.Discovery = sub.discovery, sub.discovery
	c.telemetry.Query = admin.Query[[]byte]{Ask: c.capture, Age: admin.TelemetryAge}
	c.resetFeatures()
	return c
}

// entries is the size of the controller's queues: CAP.MQES+1.
func (c *controller) entries() int { return min(c.cfg.MaxQueueSize, max(c.info.MaxDepth, 2)) }

// adminEntries returns the largest size of its admin queue. MQES of a discovery controller is
// larger, because Linux warns if it is less than the requested size of I/O queues.
func (c *controller) adminEntries() int {
	if c.sub.discovery {
		return subsystems.MinQueueSize
	}
	return c.entries()
}

// describe may be called by any goroutine.
func (c *controller) describe() observed.Host {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.queues)
	if !c.adminEnded {
		n++
	}
	return observed.Host{
		NQN: c.hostNQN, ID: hex.EncodeToString(c.hostID[:]), Subsystem: c.sub.nqn,
		CNTLID: c.cntlid, Transport: c.info.Transport.String(), Remote: c.info.Remote, Queues: n,
		Ready: c.ready.Load(), Discovery: c.sub.discovery,
		Limits: c.t.hosts.Limiter(c.hostNQN).Describe(),
	}
}

// attach makes s the I/O queue qid, or returns the refusal. A queue that has yet to authenticate
// may be anybody's, and takes no place: it is attached afterwards. Reactor of s.
func (c *controller) attach(s *session, qid uint16) association.Refusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed != nil || !c.ready.Load():
		return association.NoQueue("a controller that is enabled", "one that is not")
	case int(qid) > c.granted:
		return association.NoQueue(fmt.Sprintf("1 to %d", c.granted), qid)
	case c.queues[qid] != nil: // the first queue stays
		return association.Refusal{
			Status: nvme.CommandSequenceError, Expected: "a queue ID that is free", Received: qid,
		}
	}
	if !s.unproven() {
		c.queues[qid] = s
		s.asking = c.again.Asks()
	}
	return association.Refusal{}
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

// disconnectSessions ends queues, each on its own reactor.
func disconnectSessions(list []*session, why error) {
	onReactors(list, func(s *session) { s.disconnect(why) })
}

// stopIO ends the work of the queues at devices.
func (c *controller) stopIO() {
	onReactors(c.allQueues(), (*session).stop) // the admin queue reads for self-tests
}

// onReactors has the reactors of queues call fn, which looks at the commands of a queue. They call
// it in walks, which end before Target.Settled returns. Any goroutine.
func onReactors(list []*session, fn func(*session)) {
	for len(list) > 0 { // bound: reactors
		h := list[0].h
		own := list[:0:0]
		list = slices.DeleteFunc(list, func(s *session) bool { // bound: subsystems.MaxIOQueues
			if s.h == h {
				own = append(own, s)
			}
			return s.h == h
		})
		h.post(func() {
			h.dispatch.Start(&dispatch.Walk{Done: func() {}, Next: func() int {
				if len(own) == 0 {
					return 0
				}
				s := own[0]
				own = own[1:]
				fn(s)
				return s.looks()
			}})
		})
	}
}

// adminClosed is called when the transport closes the admin queue.
func (c *controller) adminClosed() {
	c.alive.stop()
	c.again.stop()
	c.selfTest.close()
	c.stopRemaking()
	switch {
	case c.admin.why != nil:
		c.fail(c.admin.why)
	case c.CSTS.SHST() != 0:
		c.fail(errors.New("the host shut it down"))
	default:
		c.fail(&failure{"the connection of the admin queue has ended"})
	}
	c.limit.stop()
	c.abortEvents()
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

func (c *controller) logCreated() {
	c.peerLog().Info("controller created", "subsystem", c.sub.nqn, "cntlid", c.cntlid,
		"host", c.hostNQN, "transport", c.info.Transport, "timeout", c.alive.Timeout())
}

// peerLog returns the log for events caused by the controller's host.
func (c *controller) peerLog() ratelog.Peer {
	log := c.t.hostLog
	if c.sub.discovery || !c.proof.Proven.Load() {
		log = c.t.strangerLog
	}
	return log.Peer(c.info.Remote)
}
