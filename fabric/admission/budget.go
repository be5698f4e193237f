package admission

import (
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// class is what is known of the peer of a connection.
type class uint8

const (
	unassociated class = iota // no Connect command has succeeded, or the host has not authenticated
	discovery                 // a discovery controller's
	classes
	inNoBudget = classes // an allowed host's, or evicted, or gone
)

// fractions are the limits of the budgets: the limits of the transport divided by all, and for one
// network by perHost; first for networks that are not allowed, then for networks that are. Of the
// memory they are fractions of what queues of allowed hosts leave, so that some of it stays free.
var fractions = [2][classes]struct{ all, perHost int }{
	{unassociated: {4, 16}, discovery: {16, 64}},
	{unassociated: {2, 4}, discovery: {8, 16}},
}

const (
	// maxEvicted limits the connections of each of Counter.budgets that were evicted and have not
	// left yet.
	maxEvicted = 128
	// idleNetworks is how many allowed networks without connections are remembered.
	idleNetworks = 1024
	// fewConnections is what a budget has at least, but for a quarter of a lower limit.
	fewConnections = 16
	// discoveryAge is how long no other connection evicts a discovery controller's.
	discoveryAge = 10 * time.Second
	// turnLength is how old a connection is before a network that has failed may evict it.
	turnLength = time.Second
)

// network is a network with connections, or one that is remembered. It is allowed if an allowed
// host has connected from there.
type network struct {
	addr netip.Addr // see subnet.Of
	// total counts the connections, without evicted ones, and strangers those of strangers. used is
	// what queues take whose hosts are allowed and have not proven their NQNs.
	total, strangers int
	used             usage
	allowed          bool
	budgets          [classes]budget
	node             list.Node[network] // on Counter.idle
}

// budget is what the connections of a class take of the limits, of one network or of all.
type budget struct {
	connections int
	memory      int64
	// conns are the oldest first, without those that are held; apart those that have shown a key,
	// which are withKey.
	conns, shown list.List[Conn]
	withKey      int
}

// list is where a connection of the budget is, unless it is held.
func (b *budget) list(e *Conn) *list.List[Conn] {
	if e.shown {
		return &b.shown
	}
	return &b.conns
}

// oldest returns the connection that makes room first, nil if there is none: one that has shown no
// key, unless more than half have. Peers may repeat what a host has sent.
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

// kind is an index of Counter.budgets and fractions.
func (h *network) kind() int {
	if h.allowed {
		return 1
	}
	return 0
}

// budgets returns the budgets that count the connection, which has a class: that of its network and
// that of all networks.
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

// add counts a connection, sign times.
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

// full reports whether a budget with these limits has no room for a connection. The first one
// always has, whatever its memory.
func (b *budget) full(connections int, total, memory int64) bool {
	return b.connections >= connections || b.connections > 0 && b.memory+memory > total
}

// mostConnections and mostMemory are the limits of a budget that is one part in so many.
func (c *Counter) mostConnections(part int) int {
	l := c.limits.Connections
	return max(l/part, min(l/4, fewConnections), 1)
}

func (c *Counter) mostMemory(part int) int64 {
	return max(c.limits.Memory-c.given[resMemory], 0) / int64(part)
}

// crowded reports whether strangers from networks such as this one wait for their turn: more than
// half of what they may have is taken. Allowed networks are never refused for that.
func (c *Counter) crowded(n *network) bool {
	b, part := &c.budgets[0][unassociated], 2*fractions[0][unassociated].all
	return !n.allowed &&
		(b.connections >= c.mostConnections(part) || b.memory > c.mostMemory(part))
}

// hasTurn reports whether a connection from a network may be admitted now. Networks that have
// failed have to wait while others do: they may only replace a connection that has had turnLength.
func (c *Counter) hasTurn(n *network) bool {
	now := c.now()
	if !c.limits.Turns || !c.crowded(n) || !c.failed.has(n.addr, now) {
		return true
	}
	if !c.failed.overflows { // otherwise it would be kept out longer than those that come once
		c.failed.add(n.addr, now)
	}
	b := &c.budgets[0][unassociated]
	oldest := b.oldest()
	return oldest != nil && now.Sub(oldest.since) >= turnLength && c.evictOldest(b)
}

// noteFailed notes that the connection ends without a Connect command that has succeeded.
func (e *Conn) noteFailed() {
	if e.c.limits.Turns && e.class == unassociated && !e.network.allowed {
		e.c.failed.add(e.network.addr, e.c.now())
	}
}

// makeRoom evicts connections until one more of this class from h, with so much memory, is within
// the limits of its budgets. It returns false if it cannot.
func (c *Counter) makeRoom(h *network, cl class, memory int64) bool {
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
		for b.full(b.connections, b.memory, memory) {
			if !c.evictOldest(b.budget) {
				return false
			}
		}
	}
	return true
}

// evictOldest evicts the oldest connection of a budget. It returns false if there is none, or none
// that may be evicted now.
func (c *Counter) evictOldest(b *budget) bool {
	e := b.oldest()
	if e == nil || e.class == discovery && c.now().Sub(e.since) < discoveryAge {
		return false
	}
	kind := e.network.kind()
	if c.evicted[kind] >= maxEvicted {
		return false
	}
	c.evicted[kind]++
	c.evicts++
	e.isEvicted, e.evictedFrom = true, kind
	e.noteFailed()
	e.quit()
	e.uncount()
	c.victims = append(c.victims, e)
	return true
}

// enter counts a connection of h.
func (c *Counter) enter(h *network) {
	if h.node.Listed() {
		c.idle.Remove(&h.node)
		c.idles--
	}
	c.networks[h.addr] = h
	h.total++
	h.strangers++
}

// uncount undoes what Admit has counted, but for the memory. It forgets a network without
// connections, and of those that are allowed the oldest if they are too many.
func (e *Conn) uncount() {
	c, h := e.c, e.network
	c.total--
	if e.owner == nil {
		h.strangers--
	}
	if h.total--; h.total > 0 {
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

// allow notes that an allowed host has connected from h, and moves the connections from there into
// the budgets of such addresses.
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
			for e := range l.All() {
				from.list(e).Remove(&e.nodes[1])
				to.list(e).Push(e, &e.nodes[1])
			}
		}
	}
	h.allowed = true
}
