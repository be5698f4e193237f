package admission

import (
	"fmt"
	"runtime"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// This file divides the limits among the queues of allowed hosts (docs/adr/0046), as docs/adr/0021
// does for data memory. A host, or a network with hosts that have not proven their NQNs, may have
// up to twice as much as stays free (subnet.Exceeds), and at least one part in smallPart of the
// limit. So no owner can take everything. The last parts of a limit are for admin queues, and for
// hosts that have proven their NQN.
const (
	smallPart = 16
	// littlePart: a network that has less than one part in littlePart of the free part may have
	// more, even if others have taken the share of the NQN that its host claims.
	littlePart = 8
)

// reserve returns the part of a limit that a queue leaves free, as a denominator; 0 means none.
func reserve(c *fabric.Claim) int64 {
	switch {
	case c.Admin && c.Proven:
		return 0
	case c.Admin:
		return 32
	case c.Proven:
		return 16
	}
	return 8
}

// resource is a resource that hosts share.
type resource uint8

const (
	resConnections resource = iota
	resMemory               // in bytes
	resources
)

// usage is an amount of each resource.
type usage [resources]int64

func (u *usage) add(o usage, sign int64) {
	for r := range u {
		u[r] += sign * o[r]
	}
}

// owner is a host with queues. A proven and a claimed NQN are different owners.
type owner struct {
	subnet.Owner
	used usage
}

// of describes the use of n out of limit.
func (r resource) of(n, limit int64) string {
	if r == resMemory {
		return fmt.Sprintf("%d of %d KiB of queue memory", n>>10, limit>>10)
	}
	return fmt.Sprintf("%d of %d connections", n, limit)
}

func (c *Counter) limit(r resource) int64 {
	if r == resMemory {
		return c.limits.Memory
	}
	return int64(c.limits.Connections)
}

// shares returns an error if a queue of an allowed host would exceed a share. It names the share
// and its owner.
func (c *Counter) shares(e *Conn, claim *fabric.Claim, want usage) error {
	var host usage
	if o := c.hosts[subnet.Owner{NQN: claim.Host, Proven: claim.Proven}]; o != nil {
		host = o.used
	}
	if claim.Proven && host[resConnections] >= int64(c.limits.PerHost) {
		return fmt.Errorf("host %q has %d connections, the limit", claim.Host, host[resConnections])
	}
	if n := e.network; !claim.Proven && n.used[resConnections] >= int64(c.limits.PerHost) {
		return n.atLimit(int(n.used[resConnections]))
	}
	for r := range resources {
		limit, n := c.limit(r), want[r]
		left := limit - c.given[r] - n
		if part := reserve(claim); part > 0 {
			left -= limit / part
		}
		if left < 0 {
			return fmt.Errorf("%s are in use, the rest is kept for %s", r.of(c.given[r], limit),
				keptFor(claim))
		}
		exceeds := func(used int64) bool {
			return used+n > limit/smallPart && subnet.Exceeds(used, n, left)
		}
		network := e.network.used[r]
		little := !claim.Proven && network+n <= left/littlePart
		switch {
		case !claim.Proven && exceeds(network):
			return fmt.Errorf("hosts at %s that have not proven their NQN have %s, their share",
				subnet.Text(e.network.addr), r.of(network, limit))
		case !little && exceeds(host[r]):
			return fmt.Errorf("host %q has %s, its share", claim.Host, r.of(host[r], limit))
		}
	}
	return nil
}

// Shares lists the shares of hosts and networks, in no particular order. A share that
// comes or goes meanwhile may be left out.
func (c *Counter) Shares() (list []fabric.Share) {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps := 0
	step := func() { // reactors wait for the lock: they get it after each sharesStep
		if steps++; steps%sharesStep == 0 {
			c.mu.Unlock()
			runtime.Gosched()
			c.mu.Lock()
		}
	}
	for key, o := range c.hosts {
		list = append(list, c.share(key, o.used))
		step()
	}
	for addr, n := range c.networks {
		if n.used != (usage{}) {
			list = append(list, c.share(subnet.Owner{Network: addr}, n.used))
		}
		step()
	}
	return list
}

// sharesStep is how many hosts or networks Shares looks at without giving the lock away.
const sharesStep = 64

// share describes the resources of an owner and the maximum that an I/O queue may still take.
func (c *Counter) share(o subnet.Owner, used usage) fabric.Share {
	var most usage
	for r := range resources {
		limit := c.limit(r)
		free := limit - c.given[r] - limit/reserve(&fabric.Claim{Proven: o.Proven})
		most[r] = max(subnet.Most(used[r], free), limit/smallPart)
	}
	if o.NQN == "" || o.Proven { // others are bounded by their networks
		most[resConnections] = min(most[resConnections], int64(c.limits.PerHost))
	}
	return fabric.Share{
		Owner: o, Connections: used[resConnections], MostConnections: most[resConnections],
		Memory: used[resMemory], MostMemory: most[resMemory],
	}
}

// atLimit returns the error for a network that has Limits.PerHost connections.
func (h *network) atLimit(n int) error {
	return fmt.Errorf("%d connections from %s are open, the limit", n, subnet.Text(h.addr))
}

// keptFor describes the purpose of the reserve that a queue leaves free.
func keptFor(c *fabric.Claim) string {
	switch {
	case c.Admin:
		return "hosts that have proven their NQN"
	case c.Proven:
		return "admin queues"
	}
	return "admin queues and hosts that have proven their NQN"
}

// give makes the connection count for an allowed host, with all its memory.
func (e *Conn) give(claim *fabric.Claim) {
	c := e.c
	key := subnet.Owner{NQN: claim.Host, Proven: claim.Proven}
	o := c.hosts[key]
	if o == nil {
		o = &owner{Owner: key}
		c.hosts[key] = o
	}
	e.owner = o
	e.network.strangers--
	e.count(usage{1, e.memory}, 1)
}

// count adds to the usage of the host that the connection counts for; sign is 1 or -1.
func (e *Conn) count(u usage, sign int64) {
	e.c.given.add(u, sign)
	e.owner.used.add(u, sign)
	if !e.owner.Proven {
		e.network.used.add(u, sign)
	}
	if key := e.owner.Owner; e.owner.used == (usage{}) && e.c.hosts[key] == e.owner {
		delete(e.c.hosts, key)
	}
}
