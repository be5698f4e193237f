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

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// controller is an association of a host with a subsystem. The reactor of its admin queue owns it.
type controller struct {
	controllers.Controller
	t        *Target
	sub      *subsystem
	h        *Handler // the admin queue's
	admin    *session
	calledAs string // the name of the subsystem in Connect: discovery may have two
	created  time.Time
	dumped   atomic.Bool // the record of a queue was dumped, see session.dumpFailed
	queueTable

	// The rest belongs to the admin reactor.
	limit      timer // of disabledLimit
	alive      keepAliveTimer
	reauth     reauthentication
	selfTest   selfTest
	requests   []*cmd // that wait for events
	aborts     int    // Abort commands in progress
	protecting bool   // a write protection changes
	changing   bool   // a feature changes in many namespaces
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
	settings := sub.Settings.Load()
	c := &controller{
		t: s.h.t, sub: sub, h: s.h, admin: s, created: time.Now(),
		queueTable: queueTable{queues: map[uint16]*session{}, granted: settings.MaxIOQueues},
		Controller: controllers.Controller{
			Target: &s.h.t.shared, Subsystem: &sub.Subsystem, Settings: settings,
			Port: s.port, Info: s.info, Reactor: &s.h.functions, HostNQN: hostNQN,
			HostID: hostID, MustConcatenate: s.mustConcatenate,
		},
	}
	c.Owner, c.selfTest.c = c, c
	c.Hooks = controllers.Hooks{
		Fail: c.fail, Raised: c.sendEvents, Grant: c.grant, SetKeepAlive: c.setKeepAlive,
		Work: s.hostWork, Queues: c.askQueues,
	}
	c.Init()
	return c
}

// grant lets the host connect n I/O queues, unless some are connected.
func (t *queueTable) grant(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queues) > 0 {
		return false
	}
	t.granted = n
	return true
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
		NQN: c.HostNQN, ID: hex.EncodeToString(c.HostID[:]), Subsystem: c.sub.NQN,
		CNTLID: c.CNTLID, Transport: c.Info.Transport.String(), Remote: c.Info.Remote, Queues: n,
		Ready: c.Ready.Load(), Discovery: c.sub.Discovery,
		Limits: c.Target.Hosts.Limiter(c.HostNQN).Describe(),
	}
}

// attach makes s the I/O queue qid, or returns the refusal. A queue that has not authenticated yet
// may belong to anybody, so it takes no place: it is attached afterwards. Reactor of s.
func (c *controller) attach(s *session, qid uint16) association.Refusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed != nil || !c.Ready.Load():
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
		s.asking = c.reauth.Asks()
	}
	return association.Refusal{}
}

// fail ends the association: every queue is disconnected. Any goroutine may call it repeatedly.
func (c *controller) fail(why error) {
	c.mu.Lock()
	if c.failed != nil {
		c.mu.Unlock()
		return
	}
	c.failed = why
	c.Ready.Store(false)
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
	c.reauth.stop()
	c.selfTest.close()
	c.StopRemaking()
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
		c.sub.Remove(&c.Controller)
		args := []any{
			"reason", why, "duration", time.Since(c.created).Round(time.Millisecond),
		}
		if c.dumped.Load() {
			args = append(args, "hint", dumpHint)
		}
		c.Report(event.ControllerRemoved, args...)
	case last && s.qid != 0:
		c.h.post(c.ioQueuesEnded)
	}
}

func (c *controller) logCreated() {
	c.Report(event.ControllerCreated, "transport", c.Info.Transport, "timeout", c.alive.Timeout())
}
