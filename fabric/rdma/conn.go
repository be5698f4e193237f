package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// conn is a checked connection request. Group.Adopt makes it the connection of a queue.
type conn struct {
	t    *Transport
	id   verbs.ID
	info fabric.QueueInfo
	// depth is the number of commands that the host sends, credits the number of responses that it
	// can receive, and reads the number of RDMA READs that it serves at once.
	depth, credits, reads int
	// useSRQ reports whether capsules come from a shared receive queue.
	useSRQ bool
	// counted counts the registered memory of the queue (slabSize).
	counted *admission.Conn

	mu      sync.Mutex
	q       *queue // once adopted
	claimed bool   // adopted or closed
	ended   error  // the reason if the connection ended before it was adopted
	evicted error  // the reason why it must end, if it was evicted
}

// connectRequest accepts or rejects a connection request. CM goroutine.
func (t *Transport) connectRequest(ev *verbs.Event) {
	t.mu.Lock()
	l := t.listening[ev.Listener]
	if l != nil {
		l.wg.Add(1) // before Close may wait
		defer l.wg.Done()
	}
	t.mu.Unlock()
	c := &conn{t: t, id: ev.ID}
	ev.ID.SetContext(c)
	c.info = fabric.QueueInfo{
		Transport: nvme.TransportRDMA, Local: unmap(ev.ID.Local()), Remote: unmap(ev.ID.Remote()),
		CNTLID:        nvme.CNTLIDDynamic,
		InCapsuleSize: t.cfg.InCapsuleSize, MSDBD: msdbd(t.cfg.InCapsuleSize),
	}
	var err error
	refusal := cmwire.Refusal{Status: cmwire.NoResources}
	if l == nil {
		err = errors.New("the listener is closed")
	} else {
		c.info.PortID = l.portID
		refusal = c.validate(&ev.Param)
	}
	if refusal.Status == cmwire.Accepted {
		c.useSRQ = t.useSRQ(ev.ID.Device())
		c.counted, err = t.admission.Admit(c.info.Remote.Addr(), c.slabSize(), c.evict)
		if err != nil {
			refusal.Status = cmwire.NoResources
		}
	}
	if refusal.Status != cmwire.Accepted {
		c.refuse(refusal, err)
		return
	}
	l.wg.Go(func() { l.accept(c) })
}

// refuse rejects the request and logs the reason: its content, or an error.
func (c *conn) refuse(r cmwire.Refusal, reason error) {
	log := c.t.log.Peer(c.info.Remote)
	args := []any{"local", c.info.Local, "status", r.Status}
	switch {
	case reason != nil:
		args = append(args, "err", reason)
	case r.Status == cmwire.InvalidHSQSize:
		args = append(args, "expected", r.Expected, "received", r.Received, "hint",
			"queue_depth is the limit; nvme connect --queue-size asks for less")
	default:
		args = append(args, "expected", r.Expected, "received", r.Received)
	}
	log.Report(event.RDMARejected, args...)
	if err := c.reject(r.Status); err != nil {
		log.Report(event.RDMANotRejected, "err", err)
	}
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// validate checks the host's request (RDMA section 3.1.4) and takes over its values.
func (c *conn) validate(p *verbs.ConnParam) cmwire.Refusal {
	req, ok := cmwire.ParseReq(p.PrivateData)
	if !ok {
		return cmwire.Refusal{
			Status: cmwire.InvalidLength, Expected: fmt.Sprintf("%d bytes", cmwire.ReqSize),
			Received: fmt.Sprintf("%d bytes, padding included", len(p.PrivateData)),
		}
	}
	next := c.t.next.Load()
	limits := next.limits()
	// Before an Update a controller may have announced more; the handler checks against its
	// announcement.
	limits.MaxDepth = int(c.t.deepest.Load())
	if r := req.Check(&limits); r.Status != cmwire.Accepted {
		return r
	}
	// InitiatorDepth, as seen from here, is the number of READs that the host serves at once:
	// writes need at least one. The number it wants to issue does not matter, since it gets none:
	// RDMA section 3.1.4.
	if p.InitiatorDepth == 0 {
		return cmwire.Refusal{Status: cmwire.InvalidIRD, Expected: "at least 1", Received: "0"}
	}
	c.info.QID = int(req.QID)
	if req.QID != 0 && req.CNTLID != 0 { // 0: the host is older than the field
		c.info.CNTLID = req.CNTLID
	}
	c.depth = int(req.HSQSize) + 1
	if c.info.MaxDepth = c.depth; req.QID == 0 {
		c.info.MaxDepth = next.MaxDepth // of later I/O queues: it becomes CAP.MQES
	}
	c.credits = min(int(req.HRQSize), c.depth)
	c.reads = min(int(p.InitiatorDepth), maxReads)
	return cmwire.Refusal{}
}

// inCapsule is the size of in-capsule data: RDMA section 3.3.1, none on the admin queue.
func (c *conn) inCapsule() int {
	if c.info.QID == 0 {
		return 0
	}
	return c.info.InCapsuleSize
}

// slabSize is the size of the registered memory of the queue alone, in bytes.
func (c *conn) slabSize() int64 {
	slots := c.depth
	if c.useSRQ {
		slots = 0
	}
	return int64(slabSize(slots, c.inCapsule(), c.depth*responseSize))
}

// useOwnReceives gives the queue its own receives instead of an SRQ, and charges their memory.
func (c *conn) useOwnReceives() error {
	shared := c.slabSize()
	c.useSRQ = false
	return c.counted.Charge(c.slabSize() - shared)
}

// leave ends the accounting of the connection.
func (c *conn) leave() {
	c.counted.Uncharge()
	c.counted.Leave()
}

// evict ends the connection, because another one takes its place. Any goroutine may call it, at any
// time between Admit and the end of the connection.
func (c *conn) evict(reason error) {
	c.mu.Lock()
	c.evicted = reason // for mustEnd and bind
	q := c.q
	c.mu.Unlock()
	if q != nil {
		q.g.cfg.Loop.Post(func() { q.fail(reason) })
	}
}

// Node is the NUMA node of the device, negative if it has none.
func (c *conn) Node() int {
	if dev := c.id.Device(); dev != nil {
		return dev.Attr().Node
	}
	return -1
}

// Info describes the connection.
func (c *conn) Info() *fabric.QueueInfo { return &c.info }

// Close rejects the connection with "no resources".
func (c *conn) Close() error {
	if err := c.claim(); err != nil {
		return nil // it was adopted or closed
	}
	defer c.leave()
	return c.reject(cmwire.NoResources)
}

var errClaimed = errors.New("the connection has been adopted or closed before")

// claim makes its first caller the one that decides about the connection.
func (c *conn) claim() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claimed {
		return errClaimed
	}
	c.claimed = true
	return nil
}

// mustEnd returns why the connection has ended or must end before it has a queue.
func (c *conn) mustEnd() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.ended, c.evicted)
}

// bind delivers events to q from now on. It fails if the connection has ended, or must end.
func (c *conn) bind(q *queue) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.q = q
	}
	return cmp.Or(c.ended, c.evicted)
}

// reject rejects the request and frees the identifier; its queue pair must have been destroyed.
func (c *conn) reject(st cmwire.Status) error {
	c.mu.Lock()
	ended := c.ended != nil
	c.mu.Unlock()
	var err error
	if !ended {
		err = c.id.Reject(cmwire.Bytes(cmwire.Rej{Status: st}))
	}
	return errors.Join(err, c.id.Destroy())
}

// event handles an event of the connection. CM goroutine.
func (c *conn) event(ev *verbs.Event) {
	typ, status := ev.Type, ev.Status
	c.mu.Lock()
	q := c.q
	if q == nil && endsConnection(typ) {
		c.ended = fmt.Errorf("the connection ended before it was accepted: %v", typ)
	}
	c.mu.Unlock()
	if q != nil {
		q.g.cfg.Loop.Post(func() { q.event(typ, status) })
	}
}

func endsConnection(t verbs.EventType) bool {
	switch t {
	case verbs.EventDisconnected, verbs.EventDeviceRemoval, verbs.EventConnectError,
		verbs.EventUnreachable, verbs.EventRejected,
		verbs.EventAddrChange, verbs.EventTimewaitExit:
		return true
	}
	return false
}
