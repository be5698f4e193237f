package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// conn is a connection request that passed the checks: first nobody's, then a queue's.
type conn struct {
	t    *Transport
	id   verbs.ID
	info fabric.QueueInfo
	// depth is the number of commands the host sends, credits the number of responses it receives,
	// reads the number of RDMA READs it serves at once.
	depth, credits, reads int
	// receives are shared with other queues; from Adopt on queue.shared says so
	shared bool

	mu    sync.Mutex
	q     *queue // once adopted
	taken bool   // adopted, or closed
	dead  error  // the connection ended before it was adopted
}

// request judges a connection request. CM goroutine.
func (t *Transport) request(ev *verbs.Event) {
	t.mu.Lock()
	l := t.byID[ev.Listener]
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
	st, why := cmwire.NoResources, "the listener is closed"
	if l != nil {
		c.info.PortID = l.portID
		st, why = c.judge(&ev.Param)
	}
	if st == cmwire.Accepted {
		c.shared = t.sharing(ev.ID.Device())
		if err := t.admit(c); err != nil {
			st, why = cmwire.NoResources, err.Error()
		}
	}
	if st != cmwire.Accepted {
		t.log.Warn("RDMA connection rejected", "remote", c.info.Remote, "local", c.info.Local,
			"status", st, "reason", why)
		if err := c.refuse(st); err != nil {
			t.log.Warn("RDMA connection cannot be rejected", "remote", c.info.Remote, "error", err)
		}
		return
	}
	l.wg.Go(func() { l.accept(c) })
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(),
		a.Port())
}

// judge validates what the host sent (RDMA section 3.1.4) and takes it over.
func (c *conn) judge(p *verbs.ConnParam) (cmwire.Status, string) {
	cfg := &c.t.cfg
	req, ok := cmwire.ParseReq(p.PrivateData)
	if !ok {
		return cmwire.InvalidLength,
			fmt.Sprintf("private data of %d bytes, a request has %d (padding does not count)",
				len(p.PrivateData), cmwire.ReqSize)
	}
	limits := cfg.limits()
	if st, why := req.Check(&limits); st != cmwire.Accepted {
		return st, why
	}
	// The depths are seen from here: InitiatorDepth is how many READs the host serves at once.
	// Writes cannot work without any. How many it wants to issue does not matter, it gets none:
	// RDMA section 3.1.4.
	if p.InitiatorDepth == 0 {
		return cmwire.InvalidIRD, "the host serves no RDMA READ (inbound READ depth 0)"
	}
	c.info.QID = int(req.QID())
	if req.QID() != 0 && req.CNTLID() != 0 { // 0: the host is older than the field
		c.info.CNTLID = req.CNTLID()
	}
	c.depth = int(req.HSQSize()) + 1
	if c.info.MaxDepth = c.depth; req.QID() == 0 {
		c.info.MaxDepth = cfg.MaxDepth // of the I/O queues that will follow: it becomes CAP.MQES
	}
	c.credits = min(int(req.HRQSize()), c.depth)
	c.reads = min(int(p.InitiatorDepth), cfg.MaxReads)
	return cmwire.Accepted, ""
}

// inCapsule is the size of in-capsule data: RDMA section 3.3.1, none on the admin queue.
func (c *conn) inCapsule() int {
	if c.info.QID == 0 {
		return 0
	}
	return c.info.InCapsuleSize
}

// memory is the registered memory that the queue will have of its own, in bytes.
func (c *conn) memory() int64 {
	if c.shared {
		return int64(roundUp(c.depth*responseSize, pageSize))
	}
	return int64(capsuleMemory(c.depth, c.inCapsule()))
}

// ownReceives changes the queue to receives of its own and counts their memory.
func (c *conn) ownReceives() error {
	before := c.memory()
	c.shared = false
	more := int(c.memory() - before)
	if err := c.t.charge(more); err != nil {
		c.shared = true // as it is counted
		return err
	}
	return nil
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

// Close refuses the connection with "no resources".
func (c *conn) Close() error {
	if err := c.take(); err != nil {
		return nil // somebody else did, or adopted it
	}
	defer c.t.leave(c)
	return c.refuse(cmwire.NoResources)
}

var errTaken = errors.New("the connection has been adopted or closed before")

// take makes the caller the one who decides about the connection.
func (c *conn) take() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken {
		return errTaken
	}
	c.taken = true
	return nil
}

// own hands the connection's events to q from now on. An error says that it has ended already.
func (c *conn) own(q *queue) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead == nil {
		c.q = q
	}
	return c.dead
}

// refuse rejects the request and frees the identifier; its queue pair must be gone.
func (c *conn) refuse(st cmwire.Status) error {
	var rej cmwire.Rej
	rej.Set(st)
	c.mu.Lock()
	dead := c.dead != nil
	c.mu.Unlock()
	var err error
	if !dead {
		err = c.id.Reject(rej[:])
	}
	return errors.Join(err, c.id.Destroy())
}

// event takes an event of the connection. CM goroutine.
func (c *conn) event(ev *verbs.Event) {
	typ, status := ev.Type, ev.Status
	c.mu.Lock()
	q := c.q
	if q == nil && endOf(typ) {
		c.dead = fmt.Errorf("the connection ended before it was accepted: %v", typ)
	}
	c.mu.Unlock()
	if q != nil {
		q.g.cfg.Loop.Post(func() { q.event(typ, status) })
	}
}

// endOf says that an event ends a connection.
func endOf(t verbs.EventType) bool {
	switch t {
	case verbs.EventDisconnected, verbs.EventDeviceRemoval, verbs.EventConnectError,
		verbs.EventUnreachable, verbs.EventRejected,
		verbs.EventAddrChange, verbs.EventTimewaitExit:
		return true
	}
	return false
}
