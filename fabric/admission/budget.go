package admission

import (
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// class is the class of a connection by its peer.
type class uint8

const (
	unassociated class = iota // no Connect command has succeeded, or the host has not authenticated
	discovery                 // of a discovery controller
	classes
	inNoBudget = classes // of an allowed host, or evicted, or gone
)

// fractions are the limits of the budgets: the limits of the transport divided by all, and for one
// network by perHost; first for networks that are not allowed, then for networks that are. For
// memory they divide the memory that queues of allowed hosts leave, so that some of it stays free.
var fractions = [2][classes]struct{ all, perHost int }{
	{unassociated: {4, 16}, discovery: {16, 64}},
	{unassociated: {2, 4}, discovery: {8, 16}},
}

const (
	// maxEvicted limits, for each of Counter.budgets, the evicted connections that have not left.
	// They count for the network of the connection that takes their place. It may have up to twice
	// as many as others may still add (subnet.Exceeds), so it keeps no other network out.
	maxEvicted = 128
	// idleNetworks is the number of allowed networks without connections that are remembered.
	idleNetworks = 1024
	// fewConnections is the minimum of a budget, or a quarter of the limit if that is less.
	fewConnections = 16
	// discoveryAge is the age below which the connection of a discovery controller is not evicted.
	discoveryAge = 10 * time.Second
	// turnLength is the age at which a network that has failed may evict a connection.
	turnLength = time.Second
)

// network is a network with connections, or one that is remembered. It is allowed if an allowed
// host has connected from it.
type network struct {
	addr netip.Addr // see subnet.Of
	// total counts the connections, without evicted ones, and strangers the connections of
	// strangers. used is the resources of queues of allowed hosts that have not proven their NQNs.
	// ending counts the connections evicted by connections of the network that have not left.
	total, strangers int
	ending           int
	used             usage
	allowed          bool
	budgets          [classes]budget
	node             list.Node[network] // on Counter.idle
}

// budget is the part of the limits for the connections of a class, of a network or all.
type budget struct {
	connections int
	memory      int64
	// conns and shown are the connections that are not held, the oldest first; shown has the
	// connections that have shown a key. withKey counts all that have shown one, held or not.
	conns, shown list.List[Conn]
	withKey      int
}

// list returns the list for a connection of the budget that is not held.
func (b *budget) list(e *Conn) *list.List[Conn] {
	if e.shown {
		return &b.shown
	}
	return &b.conns
}

// oldest returns the connection to evict next, or nil if there is none: one that has shown no key,
// unless more than half have shown one. Peers may repeat the bytes that a host has sent.
func (b *budget) oldest() *Conn {
	first, second := b.conns.First(), b.shown.First()
	if 2*b.withKey > b.connections {
		first, second = second, first
	}
	if first == nil {
		return second
	}
	return first
}

// kind returns the index of the network in Counter.budgets and fractions.
func (h *network) kind() int {
	if h.allowed {
		return 1
	}
	return 0
}

// budgets returns the budgets of the connection's class: of its network and of all.
func (e *Conn) budgets() [2]*budget {
	return [2]*budget{&e.network.budgets[e.class], &e.c.budgets[e.network.kind()][e.class]}
}

// join makes the connection the newest of its class.
func (e *Conn) join(cl class) {
	e.class = cl
	for i, b := range e.budgets() {
		b.add(e, 1)
		if !e.held {
			b.list(e).Push(e, &e.nodes[i])
		}
	}
}

// add counts a connection; sign is 1 or -1.
func (b *budget) add(e *Conn, sign int) {
	b.connections += sign
	b.memory += int64(sign) * e.memory
	if e.shown {
		b.withKey += sign
	}
}

// quit takes the connection out of its budgets, if it is in any.
func (e *Conn) quit() {
	if e.class == inNoBudget {
		return
	}
	for i, b := range e.budgets() {
		b.add(e, -1)
		if !e.held {
			b.list(e).Remove(&e.nodes[i])
		}
	}
	e.class = inNoBudget
}

// full reports whether a budget has no room for a connection. The first always has.
func (b *budget) full(connections int, total, memory int64) bool {
	return b.connections >= connections || b.connections > 0 && b.memory+memory > total
}

// mostConnections and mostMemory return the limits of a budget of 1/part.
func (c *Counter) mostConnections(part int) int {
	l := c.limits.Connections
	return max(l/part, min(l/4, fewConnections), 1)
}

func (c *Counter) mostMemory(part int) int64 {
	return max(c.limits.Memory-c.given[resMemory], 0) / int64(part)
}

// crowded reports whether strangers from networks such as this one wait for their turn: more than
// half of their budget is taken. Allowed networks never wait.
func (c *Counter) crowded(n *network) bool {
	b, part := &c.budgets[0][unassociated], 2*fractions[0][unassociated].all
	return !n.allowed &&
		(b.connections >= c.mostConnections(part) || b.memory > c.mostMemory(part))
}

// hasTurn reports whether a connection from a network may be admitted now. While others wait, a
// network that has failed may only replace a connection older than turnLength.
func (c *Counter) hasTurn(n *network) bool {
	now := c.now()
	if !c.limits.Turns || !c.crowded(n) || !c.failed.has(n.addr, now) {
		return true
	}
	if !c.failed.overflows { // otherwise it would be kept out longer than new networks
		c.failed.add(n.addr, now)
	}
	b := &c.budgets[0][unassociated]
	oldest := b.oldest()
	return oldest != nil && now.Sub(oldest.since) >= turnLength && c.evictOldest(b, n) == nil
}

// recordFailure records that the connection ends without a successful Connect command.
func (e *Conn) recordFailure() {
	if e.c.limits.Turns && e.class == unassociated && !e.network.allowed {
		e.c.failed.add(e.network.addr, e.c.now())
	}
}

// makeRoom evicts connections until one of this class from h, with this memory, has room.
func (c *Counter) makeRoom(h *network, cl class, memory int64) error {
	f := fractions[h.kind()][cl]
	all := c.mostMemory(f.all)
	for _, b := range []struct {
		*budget
		connections int
		memory      int64
	}{
		{
			&h.budgets[cl], c.mostConnections(f.perHost),
			min(c.limits.Memory/int64(f.perHost), all),
		},
		{&c.budgets[h.kind()][cl], c.mostConnections(f.all), all},
	} {
		for b.full(b.connections, b.memory, memory) { // bound: maxEvicted
			if err := c.evictOldest(b.budget, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// evictOldest evicts the oldest connection of a budget for a connection from another network, or
// the same one. It fails if there is none, or none that may be evicted now.
func (c *Counter) evictOldest(b *budget, by *network) error {
	e := b.oldest()
	if e == nil || e.class == discovery && c.now().Sub(e.since) < discoveryAge {
		return errNoRoom
	}
	kind := e.network.kind()
	left := maxEvicted - c.evicted[kind] - 1
	if left < 0 || subnet.Exceeds(by.ending, 1, left) {
		return errEnding
	}
	c.remember(by)
	by.ending++
	c.evicted[kind]++
	c.evicts++
	e.evictedBy, e.evictedFrom = by, kind
	e.recordFailure()
	e.quit()
	e.uncount()
	c.victims = append(c.victims, e)
	return nil
}

// enter counts a connection of h.
func (c *Counter) enter(h *network) {
	c.remember(h)
	h.total++
	h.strangers++
}

// remember keeps h in the list of networks until forget.
func (c *Counter) remember(h *network) {
	if h.node.Listed() {
		c.idle.Remove(&h.node)
		c.idles--
	}
	c.networks[h.addr] = h
}

// uncount undoes the counts of Admit, except the memory.
func (e *Conn) uncount() {
	e.c.total--
	if e.owner == nil {
		e.network.strangers--
	}
	e.network.total--
	e.c.forget(e.network)
}

// forget forgets an unused network. Of too many allowed ones only the oldest goes.
func (c *Counter) forget(h *network) {
	if h.total > 0 || h.ending > 0 {
		return
	}
	if !h.allowed {
		delete(c.networks, h.addr)
		return
	}
	c.idle.Push(h, &h.node)
	if c.idles++; c.idles > idleNetworks {
		delete(c.networks, c.idle.Pop().addr)
		c.idles--
	}
}

// allow records that an allowed host has connected from h, and moves the connections from there
// into the budgets of allowed networks.
func (c *Counter) allow(h *network) {
	if h.allowed {
		return
	}
	for cl := range h.budgets {
		from, to, own := &c.budgets[0][cl], &c.budgets[1][cl], &h.budgets[cl]
		from.connections, to.connections = from.connections-own.connections,
			to.connections+own.connections
		from.memory, to.memory = from.memory-own.memory, to.memory+own.memory
		from.withKey, to.withKey = from.withKey-own.withKey, to.withKey+own.withKey
		for _, l := range []*list.List[Conn]{&own.conns, &own.shown} {
			for e := range l.All() { // bound: the budget of a network, once
				from.list(e).Remove(&e.nodes[1])
				to.list(e).Push(e, &e.nodes[1])
			}
		}
	}
	h.allowed = true
}
