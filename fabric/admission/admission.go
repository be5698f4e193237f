// Package admission counts the connections of a transport and the memory of their queues, and
// refuses what exceeds the limits.
//
// Until a Connect command has succeeded, and the host has authenticated if it has to, a connection
// is unassociated, and anybody may have made it; and anybody may create discovery controllers. Both
// have budgets, parts of the limits, in all and for each address; the rest is for the queues of
// allowed hosts. Addresses that an allowed host has connected from have budgets of their own, which
// no flood from elsewhere touches. An unassociated connection that finds its budget full evicts the
// oldest one in it: a handshake takes milliseconds, so that those which are idle go before those
// which are about to succeed.
package admission

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Limits are what a Counter holds a transport to.
type Limits struct {
	// Connections and PerHost limit the connections in total and from one address.
	Connections, PerHost int
	// Memory limits the memory of all queues, in bytes.
	Memory int64
}

// MaxEvicted is how many connections may be open beyond Limits.Connections: those that were evicted
// and have not left yet.
const MaxEvicted = 2 * maxEvicted

var (
	// ErrClosed is returned by Admit after Close.
	ErrClosed = errors.New("the transport is closing")

	errEvicted = errors.New("evicted by a newer connection: too many have no successful Connect " +
		"command, have not authenticated, or belong to discovery controllers")
	errLeft = errors.New("the connection has ended")
)

// Counter counts for one transport. Any goroutine may use it.
type Counter struct {
	now func() time.Time // of tests

	mu      sync.Mutex
	limits  Limits
	closed  bool
	total   int // connections, without evicted ones
	memory  int64
	budgets [2][classes]budget // of all addresses that are not allowed, and that are
	hosts   map[netip.Addr]*host
	idle    list.List[host] // allowed ones without connections, idleHosts of them
	idles   int
	// evicted counts the evicted connections that have not left, by index of budgets. victims are
	// those that have not been told.
	evicted         [2]int
	victims         []*Conn
	refused, evicts uint64
}

// Conn is a connection that is counted. Any goroutine may call its methods.
type Conn struct {
	c      *Counter
	host   *host
	evict  func(why error)
	memory int64
	class  class
	since  time.Time // it has this class
	nodes  [2]list.Node[Conn]
	// evictedFrom is an index of Counter.budgets.
	isEvicted, left bool
	evictedFrom     int
}

// New makes an empty Counter.
func New(l Limits) *Counter {
	return &Counter{limits: l, now: time.Now, hosts: make(map[netip.Addr]*host)}
}

// SetLimits changes the limits. Connections that exceed the new ones stay.
func (c *Counter) SetLimits(l Limits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits = l
}

// Admit counts an unassociated connection from addr whose queue needs so many bytes of memory. The
// error says which limit it would exceed; then nothing is counted. Leave and Uncharge undo the two
// parts.
//
// evict is called, once, if the connection has to make room for another one; it must not block, and
// the connection must then end soon. It may be called before Admit has returned to its caller, and
// after Leave.
func (c *Counter) Admit(addr netip.Addr, memory int64, evict func(why error)) (*Conn, error) {
	c.mu.Lock()
	defer c.unlock()
	h := c.hosts[addr]
	if h == nil {
		h = &host{addr: addr}
	}
	if err := c.admits(h, memory); err != nil {
		c.refused++
		return nil, err
	}
	e := &Conn{c: c, host: h, evict: evict, memory: memory, class: unassociated, since: c.now()}
	c.memory += memory
	c.total++
	c.enter(h)
	e.join(unassociated)
	return e, nil
}

// admits says why a connection from h cannot be admitted, after eviction of others.
func (c *Counter) admits(h *host, memory int64) error {
	if c.closed {
		return ErrClosed
	}
	if err := c.fits(memory); err != nil {
		return err
	}
	if !c.makeRoom(h, unassociated, memory) {
		return errors.New("too many connections without a successful Connect command are open")
	}
	if h.total >= c.limits.PerHost && !c.evictOldest(&h.budgets[unassociated]) {
		return fmt.Errorf("%d connections from this address are open, the limit", h.total)
	}
	for i := 0; c.total >= c.limits.Connections; i++ {
		if i == len(c.budgets) {
			return fmt.Errorf("%d connections are open, the limit", c.total)
		}
		c.evictOldest(&c.budgets[i][unassociated])
	}
	return nil
}

// fits says why so much memory more exceeds the limit.
func (c *Counter) fits(n int64) error {
	if c.memory+n > c.limits.Memory {
		return fmt.Errorf("%d queues have %d KiB of memory and this one wants %d, the limit is %d",
			c.total, c.memory>>10, n>>10, c.limits.Memory>>10)
	}
	return nil
}

// Associate is called when a Connect command is about to succeed, with the memory that the queue
// needs more, and once more when the host has authenticated. After an error the connection is
// unassociated, and the Connect command must be refused.
func (e *Conn) Associate(p fabric.Peer, memory int64) error {
	c := e.c
	c.mu.Lock()
	defer c.unlock()
	err := c.fits(memory)
	switch {
	case e.isEvicted:
		err = errEvicted
	case e.left:
		err = errLeft
	case err == nil:
		err = e.move(peerClasses[p], memory)
	}
	if err != nil {
		c.refused++
	}
	return err
}

// peerClasses are the classes of connections by what is known of their peers.
var peerClasses = [...]class{
	fabric.Unproven: unassociated, fabric.Discovery: discovery, fabric.Allowed: inNoBudget,
}

// move gives the connection a class and more memory.
func (e *Conn) move(cl class, memory int64) error {
	c := e.c
	e.quit()
	if cl != inNoBudget && !c.makeRoom(e.host, cl, e.memory+memory) {
		e.join(unassociated)
		return errors.New("too many discovery controllers exist, or too many connections whose " +
			"hosts have not authenticated")
	}
	c.memory += memory
	e.memory += memory
	if cl == inNoBudget {
		c.allow(e.host)
		return nil
	}
	e.since = c.now()
	e.join(cl)
	return nil
}

// FromAllowed says that an allowed host has connected from the address of the connection.
func (e *Conn) FromAllowed() bool {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return e.host.allowed
}

// Keep leaves the memory of the queue counted for good, because a device may still use it: Uncharge
// does nothing then.
func (e *Conn) Keep() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.quit()
	e.memory = 0
}

// Charge adds memory of the queue, maybe negative. After an error nothing was added.
func (e *Conn) Charge(n int64) error {
	c := e.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.fits(n); err != nil {
		return err
	}
	c.memory += n
	e.memory += n
	if e.class != inNoBudget {
		for _, b := range e.budgets() {
			b.memory += n
		}
	}
	return nil
}

// Leave removes the connection. Its memory stays counted until Uncharge.
func (e *Conn) Leave() {
	c := e.c
	c.mu.Lock()
	defer c.mu.Unlock()
	e.left = true
	if e.isEvicted {
		c.evicted[e.evictedFrom]--
		return
	}
	e.quit()
	e.uncount()
}

// Uncharge removes the memory of the queue.
func (e *Conn) Uncharge() {
	c := e.c
	c.mu.Lock()
	defer c.mu.Unlock()
	e.quit()
	c.memory -= e.memory
	e.memory = 0
}

// Charge adds n bytes of memory that queues have in common, maybe negative. After an error nothing
// was added.
func (c *Counter) Charge(n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.fits(n); err != nil {
		return err
	}
	c.memory += n
	return nil
}

// Uncharge removes n bytes that Charge has added.
func (c *Counter) Uncharge(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory -= n
}

// Usage returns the current counts.
func (c *Counter) Usage() fabric.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := fabric.Usage{
		Connections: c.total + c.evicted[0] + c.evicted[1], Memory: c.memory,
		MemoryLimit: c.limits.Memory, Refused: c.refused, Evicted: c.evicts,
	}
	for i := range c.budgets {
		u.Unassociated += c.budgets[i][unassociated].connections
		u.Discovery += c.budgets[i][discovery].connections
	}
	return u
}

// Close makes Admit refuse every connection from now on.
func (c *Counter) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// unlock unlocks mu and tells connections that they are evicted.
func (c *Counter) unlock() {
	victims := c.victims
	c.victims = nil
	c.mu.Unlock()
	for _, e := range victims {
		e.evict(errEvicted)
	}
}
