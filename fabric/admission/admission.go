// Package admission counts the connections of a transport and the memory of their queues, and
// refuses connections that exceed the limits.
//
// Anyone can make unassociated connections: a connection is unassociated until a Connect command
// has succeeded and, if required, the host has authenticated. Anyone can create discovery
// controllers, too. Both classes have budgets: parts of the limits, for all networks together and
// for each network, which is an IPv4 address or an IPv6 /64. The rest is for the queues of allowed
// hosts, each of which has a share of it (shares.go). A network becomes allowed when an allowed
// host has connected from it. Allowed networks have separate budgets, so floods from elsewhere do
// not affect them.
//
// If the budget of a new unassociated connection is full, the connection evicts the oldest one in
// it. A handshake takes milliseconds, so idle connections go before connections that are about to
// succeed. A connection is not evicted while the target works on a message of its peer (Conn.Hold),
// and a peer that has shown a key is evicted after peers that have not. While a budget is more than
// half full, networks with recently failed connections are refused, so that others have their turn.
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

// Limits are the limits of a transport.
type Limits struct {
	// Connections limits the connections in total. PerHost limits the connections of a host that
	// has proven its NQN, the connections of all other allowed hosts in one network, and the
	// connections of strangers in one network.
	Connections, PerHost int
	// Memory limits the memory of all queues, in bytes.
	Memory int64
	// Turns makes networks with failed connections wait while others wait.
	Turns bool
}

// MaxEvicted is the number of evicted connections, still open, beyond Limits.Connections.
const MaxEvicted = 2 * maxEvicted

// endWait bounds the wait of AdmitWait for an evicted connection to leave.
const endWait = 10 * time.Millisecond

var (
	// ErrClosed is returned by Admit after Close.
	ErrClosed = errors.New("the transport is closing")

	errEvicted = errors.New("evicted by a newer connection: too many have no successful Connect " +
		"command, have not authenticated, or belong to discovery controllers")
	errLeft   = errors.New("the connection has ended")
	errEnding = errors.New("too many connections that newer ones from this network have evicted " +
		"have not ended yet")
	errNoRoom = errors.New("too many connections without a successful Connect command are open")
)

// Counter counts for one transport. Any goroutine may use it.
type Counter struct {
	now func() time.Time // for tests

	mu      sync.Mutex
	limits  Limits
	closed  bool
	total   int // connections, without evicted ones
	memory  int64
	given   usage                   // of allowed hosts, and memory common to queues
	budgets [2][classes]budget      // of networks not allowed, and of allowed ones
	hosts   map[subnet.Owner]*owner // with queues
	// networks are the networks with connections. idle has up to idleNetworks allowed ones without.
	networks map[netip.Addr]*network
	idle     list.List[network]
	idles    int
	failed   recent // networks that are not allowed
	// evicted counts the evicted connections that have not left, by index of budgets. victims are
	// the evicted connections that have not been told.
	evicted [2]int
	victims []*Conn
	// ended is closed when the next evicted connection leaves; nil if nothing waits for that.
	// stuck: none has left since the end of a wait.
	ended           chan struct{}
	stuck           bool
	refused, evicts uint64
	// Of the refused ones, overShare would have exceeded the share of a host or network, or used
	// the part kept for others. outOfTurn came from networks that had failed, while others waited.
	overShare, outOfTurn uint64
}

// Conn is a counted connection. Any goroutine may call its methods.
type Conn struct {
	c       *Counter
	network *network
	owner   *owner // set when the queue counts for an allowed host
	evict   func(reason error)
	memory  int64
	class   class
	held    bool
	shown   bool
	since   time.Time // when it got this class, or was last held
	nodes   [2]list.Node[Conn]
	left    bool
	// evictedBy is the network of the newer connection, nil if the connection is not evicted.
	// evictedFrom is an index of Counter.budgets.
	evictedBy   *network
	evictedFrom int
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

// Admit counts an unassociated connection from addr and the memory of its queue, in bytes. The
// error names the limit that it would exceed; then nothing is counted. Leave removes the connection
// from the counts, and Uncharge its memory.
//
// evict is called at most once, when the connection is evicted. It must not block, and the
// connection must then end soon. It may be called before Admit has returned, and after Leave.
func (c *Counter) Admit(addr netip.Addr, memory int64, evict func(reason error)) (*Conn, error) {
	return c.admit(addr, memory, evict, false)
}

// AdmitWait is Admit for a goroutine that may wait. If newer connections from the network have
// evicted too many that have not left, it waits for the next one to leave. If none leaves within
// endWait, this and later calls return the error at once until one does.
func (c *Counter) AdmitWait(addr netip.Addr, memory int64, evict func(reason error)) (
	*Conn, error,
) {
	return c.admit(addr, memory, evict, true)
}

func (c *Counter) admit(addr netip.Addr, memory int64, evict func(reason error), wait bool) (
	*Conn, error,
) {
	c.mu.Lock()
	defer c.unlock()
	n := c.network(addr)
	err := c.admits(n, memory)
	for wait && errors.Is(err, errEnding) && c.awaitEnd() {
		n = c.network(addr)
		err = c.admits(n, memory)
	}
	if err != nil {
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

// network returns the network of an address. A new one is not listed yet.
func (c *Counter) network(addr netip.Addr) *network {
	addr = subnet.Of(addr)
	if n := c.networks[addr]; n != nil {
		return n
	}
	return &network{addr: addr}
}

// awaitEnd waits until an evicted connection leaves, and reports whether one has. It unlocks mu
// meanwhile.
func (c *Counter) awaitEnd() bool {
	if c.stuck {
		return false
	}
	if c.ended == nil {
		c.ended = make(chan struct{})
	}
	ended := c.ended
	c.unlock()
	select {
	case <-ended:
	case <-time.After(endWait):
	}
	c.mu.Lock()
	c.stuck = c.ended == ended
	return !c.stuck
}

// admits returns an error if a connection from a network cannot be admitted, even after evictions.
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
	if err := c.makeRoom(n, unassociated, memory); err != nil {
		return err
	}
	if n.strangers >= c.limits.PerHost {
		switch err := c.evictOldest(&n.budgets[unassociated], n); {
		case errors.Is(err, errEnding):
			return err
		case err != nil:
			return n.atLimit(n.strangers)
		}
	}
	var ending error
	for i := 0; c.total >= c.limits.Connections; i++ {
		switch {
		case i < len(c.budgets):
			if err := c.evictOldest(&c.budgets[i][unassociated], n); errors.Is(err, errEnding) {
				ending = err
			}
		case ending != nil:
			return ending
		default:
			return fmt.Errorf("%d connections are open, the limit", c.total)
		}
	}
	return nil
}

// fits returns an error if n more bytes exceed the limit.
func (c *Counter) fits(n int64) error {
	if c.memory+n > c.limits.Memory {
		return fmt.Errorf("%d queues have %d KiB of memory and this one wants %d, the limit is %d",
			c.total, c.memory>>10, n>>10, c.limits.Memory>>10)
	}
	return nil
}

// Associate is called when a Connect command is about to succeed, and again when the host has
// authenticated. claim is the identity in the command, and memory the additional memory that the
// queue needs. The error names the exceeded share. After an error the connection stays
// unassociated, and the Connect command must be refused.
func (e *Conn) Associate(p fabric.Peer, claim fabric.Claim, memory int64) error {
	c := e.c
	c.mu.Lock()
	defer c.unlock()
	err := c.fits(memory)
	switch {
	case e.evictedBy != nil:
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

// peerClasses are the classes of connections by kind of peer.
var peerClasses = [...]class{
	fabric.Unproven: unassociated, fabric.Discovery: discovery, fabric.Allowed: inNoBudget,
}

// move changes the class of the connection and adds memory.
func (e *Conn) move(cl class, claim *fabric.Claim, more int64) error {
	c := e.c
	if cl == inNoBudget {
		if err := c.shares(e, claim, usage{1, e.memory + more}); err != nil {
			c.overShare++
			return err
		}
	}
	e.quit()
	if cl != inNoBudget && c.makeRoom(e.network, cl, e.memory+more) != nil {
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

// Hold(true) keeps the connection from being evicted while the target works on a message of the
// peer. Hold(false) ends that and makes the connection the newest one.
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

// Shown records, while the connection is held, that its peer has shown a key of a host. From then
// on connections that have shown none are evicted first, unless more than half have shown one.
func (e *Conn) Shown() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	cl := e.class
	e.quit()
	if e.shown = true; cl != inNoBudget {
		e.join(cl)
	}
}

// Keep leaves the memory of the queue counted permanently, because a device may still use it.
// Uncharge does nothing then.
func (e *Conn) Keep() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.quit()
	e.uncharge()
	e.c.given[resMemory] += e.memory // belongs to no host
	e.memory = 0
}

// Charge adds n bytes, which may be negative, to the memory of the queue. After an error nothing
// was added.
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
	if by := e.evictedBy; by != nil {
		c.evicted[e.evictedFrom]--
		by.ending--
		c.forget(by)
		if c.stuck = false; c.ended != nil {
			close(c.ended)
			c.ended = nil
		}
		return
	}
	e.recordFailure()
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

// uncharge removes the memory from the host that the connection counts for.
func (e *Conn) uncharge() {
	if e.owner != nil {
		e.count(usage{0, e.memory}, -1)
	}
}

// Charge adds n bytes, which may be negative, of memory that queues have in common. After an error
// nothing was added.
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

// unlock unlocks mu and calls the evict functions of the victims.
func (c *Counter) unlock() {
	victims := c.victims
	c.victims = nil
	c.mu.Unlock()
	for _, e := range victims {
		e.evict(errEvicted)
	}
}
