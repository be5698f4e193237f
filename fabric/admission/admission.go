// Package admission counts the connections of a transport and the memory of their queues, and
// refuses what exceeds the limits.
//
// Anybody can make unassociated connections: a connection is unassociated until a Connect command
// has succeeded, and the host has authenticated if it has to. Anybody can create discovery
// controllers, too. Both have budgets: parts of the limits, for all together and for each network,
// which is an IPv4 address or an IPv6 /64. The rest is for the queues of allowed hosts, which have
// shares of it (shares.go). Networks that an allowed host has connected from have budgets of their
// own, which no flood from elsewhere touches.
//
// An unassociated connection that finds its budget full evicts the oldest one in it. A handshake
// takes milliseconds, so idle connections go before connections that are about to succeed. While
// the target works on what a peer has sent, its connection stays (Conn.Hold), and those that have
// shown a key go after others. While a budget is
// more than half full, networks whose connections have failed lately are refused, so that others
// have their turn.
package admission

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// Limits are what a Counter holds a transport to.
type Limits struct {
	// Connections limits the connections in total. PerHost limits the connections of a host that
	// has proven its NQN; in one network those of all other allowed hosts, and those of strangers.
	Connections, PerHost int
	// Memory limits the memory of all queues, in bytes.
	Memory int64
	// Turns: networks whose connections have failed come last while others wait.
	Turns bool
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
	given   usage                   // of queues of allowed hosts, with what these have in common
	budgets [2][classes]budget      // of all networks that are not allowed, and that are
	hosts   map[subnet.Owner]*owner // with queues
	// networks are those with connections, and idle the allowed ones without, idleNetworks of them.
	networks map[netip.Addr]*network
	idle     list.List[network]
	idles    int
	failed   recent // networks that are not allowed
	// evicted counts the evicted connections that have not left, by index of budgets. victims are
	// those that have not been told.
	evicted         [2]int
	victims         []*Conn
	refused, evicts uint64
	// Of the refused, overShare would have exceeded the share of a host or network, or used what is
	// kept for others. outOfTurn came from networks that had failed, while others waited.
	overShare, outOfTurn uint64
}

// Conn is a connection that is counted. Any goroutine may call its methods.
type Conn struct {
	c       *Counter
	network *network
	owner   *owner // once it was given to an allowed host
	evict   func(why error)
	memory  int64
	class   class
	held    bool
	shown   bool
	since   time.Time // when it got this class, or was held last
	nodes   [2]list.Node[Conn]
	// evictedFrom is an index of Counter.budgets.
	isEvicted, left bool
	evictedFrom     int
}

// New makes an empty Counter.
func New(l Limits) *Counter {
	return &Counter{
		limits: l, now: time.Now, hosts: map[subnet.Owner]*owner{},
		networks: map[netip.Addr]*network{},
	}
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
	addr = subnet.Of(addr)
	n := c.networks[addr]
	if n == nil {
		n = &network{addr: addr}
	}
	if err := c.admits(n, memory); err != nil {
		c.refused++
		return nil, err
	}
	e := &Conn{c: c, network: n, evict: evict, memory: memory, since: c.now()}
	c.memory += memory
	c.total++
	c.enter(n)
	e.join(unassociated)
	return e, nil
}

// admits says why a connection from a network cannot be admitted, after eviction of others.
func (c *Counter) admits(n *network, memory int64) error {
	if c.closed {
		return ErrClosed
	}
	if err := c.fits(memory); err != nil {
		return err
	}
	if !c.hasTurn(n) {
		c.outOfTurn++
		return fmt.Errorf("connections from %s have ended without a Connect command, and others "+
			"wait for their turn", subnet.Text(n.addr))
	}
	if !c.makeRoom(n, unassociated, memory) {
		return errors.New("too many connections without a successful Connect command are open")
	}
	if n.strangers >= c.limits.PerHost && !c.evictOldest(&n.budgets[unassociated]) {
		return n.atLimit(n.strangers)
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

// Associate is called when a Connect command is about to succeed, with what it says of the queue
// and the memory that the queue needs more, and once more when the host has authenticated. After an
// error, which says whose share is exceeded, the connection is unassociated, and the Connect
// command must be refused.
func (e *Conn) Associate(p fabric.Peer, claim fabric.Claim, memory int64) error {
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
		err = e.move(peerClasses[p], &claim, memory)
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
func (e *Conn) move(cl class, claim *fabric.Claim, more int64) error {
	c := e.c
	if cl == inNoBudget {
		if err := c.shares(e, claim, usage{1, e.memory + more}); err != nil {
			c.overShare++
			return err
		}
	}
	e.quit()
	if cl != inNoBudget && !c.makeRoom(e.network, cl, e.memory+more) {
		e.join(unassociated)
		return errors.New("too many discovery controllers exist, or too many connections whose " +
			"hosts have not authenticated")
	}
	c.memory += more
	e.memory += more
	if cl == inNoBudget {
		e.give(claim)
		c.allow(e.network)
		return nil
	}
	e.since = c.now()
	e.join(cl)
	return nil
}

// FromAllowed reports whether an allowed host has connected from the network of the connection.
func (e *Conn) FromAllowed() bool {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return e.network.allowed
}

// Hold keeps the connection from being evicted, since its turn has come and the target works on
// what the peer has sent, until it is called with false, which makes it the newest one.
func (e *Conn) Hold(on bool) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if cl := e.class; e.held != on {
		e.quit()
		e.held = on
		if cl != inNoBudget {
			e.since = e.c.now()
			e.join(cl)
		}
	}
}

// Shown notes, while the connection is held, that its peer has shown that it has a key of a host:
// from now on those make room first that have not, unless more than half have.
func (e *Conn) Shown() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	cl := e.class
	e.quit()
	if e.shown = true; cl != inNoBudget {
		e.join(cl)
	}
}

// Keep leaves the memory of the queue counted for good, because a device may still use it: Uncharge
// does nothing then.
func (e *Conn) Keep() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.quit()
	e.uncharge()
	e.c.given[resMemory] += e.memory // of nobody
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
	if e.owner != nil {
		e.count(usage{0, n}, 1)
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
	e.noteFailed()
	e.quit()
	e.uncount()
	if e.owner != nil {
		e.count(usage{1, 0}, -1)
	}
}

// Uncharge removes the memory of the queue.
func (e *Conn) Uncharge() {
	c := e.c
	c.mu.Lock()
	defer c.mu.Unlock()
	e.quit()
	e.uncharge()
	c.memory -= e.memory
	e.memory = 0
}

// uncharge takes the memory from the host that it was given to.
func (e *Conn) uncharge() {
	if e.owner != nil {
		e.count(usage{0, e.memory}, -1)
	}
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
	c.given[resMemory] += n
	return nil
}

// Uncharge removes n bytes that Charge has added.
func (c *Counter) Uncharge(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory -= n
	c.given[resMemory] -= n
}

// Usage returns the current counts.
func (c *Counter) Usage() fabric.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := fabric.Usage{
		Connections: c.total + c.evicted[0] + c.evicted[1], Memory: c.memory,
		MemoryLimit: c.limits.Memory, Refused: c.refused, Evicted: c.evicts,
		OverShare: c.overShare, OutOfTurn: c.outOfTurn,
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
