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

// fractions are the limits of the budgets: one part of so many of the limits of the transport, in
// all and for one address, for addresses that are not allowed and for those that are.
var fractions = [2][classes]struct{ all, perHost int }{
	{unassociated: {4, 16}, discovery: {16, 64}},
	{unassociated: {2, 4}, discovery: {4, 8}},
}

const (
	// maxEvicted limits the connections of each of Counter.budgets that were evicted and have not
	// left yet.
	maxEvicted = 128
	// idleHosts is how many allowed addresses without connections are remembered.
	idleHosts = 1024
	// fewConnections is what a budget has at least, but for a quarter of a lower limit.
	fewConnections = 16
	// discoveryAge is how long no other connection evicts a discovery controller's.
	discoveryAge = 10 * time.Second
)

// host is an address with connections, or that is remembered. It is allowed if an allowed host has
// connected from there.
type host struct {
	addr    netip.Addr
	total   int // connections, without evicted ones
	allowed bool
	budgets [classes]budget
	node    list.Node[host] // on Counter.idle
}

// budget is what the connections of a class take of the limits, of one address or of all.
type budget struct {
	connections int
	memory      int64
	conns       list.List[Conn] // the oldest first
}

// kind is an index of Counter.budgets and fractions.
func (h *host) kind() int {
	if h.allowed {
		return 1
	}
	return 0
}

// budgets are those that count the connection, which has a class: its address's and that of all.
func (e *Conn) budgets() [2]*budget {
	return [2]*budget{&e.host.budgets[e.class], &e.c.budgets[e.host.kind()][e.class]}
}

// join makes the connection the newest of its class.
func (e *Conn) join(cl class) {
	e.class = cl
	for i, b := range e.budgets() {
		b.connections++
		b.memory += e.memory
		b.conns.Push(e, &e.nodes[i])
	}
}

// quit takes the connection out of its budgets, if it is in any.
func (e *Conn) quit() {
	if e.class == inNoBudget {
		return
	}
	for i, b := range e.budgets() {
		b.connections--
		b.memory -= e.memory
		b.conns.Remove(&e.nodes[i])
	}
	e.class = inNoBudget
}

// full says whether a budget with these limits has no room for a connection. The first one always
// has, whatever its memory.
func (b *budget) full(connections int, total, memory int64) bool {
	return b.connections >= connections || b.connections > 0 && b.memory+memory > total
}

// makeRoom evicts connections until one more of this class from h, with so much memory, is within
// the limits of its budgets. It returns false if it cannot.
func (c *Counter) makeRoom(h *host, cl class, memory int64) bool {
	f := fractions[h.kind()][cl]
	for _, b := range []struct {
		*budget
		part int
	}{{&h.budgets[cl], f.perHost}, {&c.budgets[h.kind()][cl], f.all}} {
		l := &c.limits
		connections := max(l.Connections/b.part, min(l.Connections/4, fewConnections), 1)
		for b.full(connections, l.Memory/int64(b.part), memory) {
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
	e := b.conns.First()
	if e == nil || e.class == discovery && c.now().Sub(e.since) < discoveryAge {
		return false
	}
	kind := e.host.kind()
	if c.evicted[kind] >= maxEvicted {
		return false
	}
	c.evicted[kind]++
	c.evicts++
	e.isEvicted, e.evictedFrom = true, kind
	e.quit()
	e.uncount()
	c.victims = append(c.victims, e)
	return true
}

// enter counts a connection of h.
func (c *Counter) enter(h *host) {
	if h.node.Listed() {
		c.idle.Remove(&h.node)
		c.idles--
	}
	c.hosts[h.addr] = h
	h.total++
}

// uncount undoes what Admit has counted, but for the memory. It forgets an address without
// connections, and of those that are allowed the oldest if they are too many.
func (e *Conn) uncount() {
	c, h := e.c, e.host
	c.total--
	if h.total--; h.total > 0 {
		return
	}
	if !h.allowed {
		delete(c.hosts, h.addr)
		return
	}
	c.idle.Push(h, &h.node)
	if c.idles++; c.idles > idleHosts {
		delete(c.hosts, c.idle.Pop().addr)
		c.idles--
	}
}

// allow notes that an allowed host has connected from h, and moves the connections from there into
// the budgets of such addresses.
func (c *Counter) allow(h *host) {
	if h.allowed {
		return
	}
	for cl := range h.budgets {
		for e := range h.budgets[cl].conns.All() {
			from, to := &c.budgets[0][cl], &c.budgets[1][cl]
			from.conns.Remove(&e.nodes[1])
			to.conns.Push(e, &e.nodes[1])
			from.connections, to.connections = from.connections-1, to.connections+1
			from.memory, to.memory = from.memory-e.memory, to.memory+e.memory
		}
	}
	h.allowed = true
}
