package cm

import (
	"net/netip"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// Limits on connections that peers open and leave. A host is an address. A network is an IPv4
// address or an IPv6 /64, in which one machine can have any number of addresses.
const (
	// Half-open connections: a REQ has arrived, and neither RTU nor packet has shown that its
	// source address is genuine. Hosts with a connection have a share of their own, so that forged
	// addresses do not keep them from making another.
	maxHalfHost      = 128
	maxHalfKnown     = 512
	maxHalfStrangers = 512
	// The strangers of one network leave half of the share to others.
	maxHalfNetwork = maxHalfStrangers / 2
	// Connections that the program is done with. They are kept for a while to answer messages that
	// come again, and to repeat a DREQ. Beyond the limit they are forgotten at once.
	maxLingerHost = 128
	maxLinger     = 4096
)

// class is the account of a connection.
type class uint8

const (
	classNone     class = iota // our own request
	classStranger              // half-open, from a host without a connection
	classKnown                 // half-open, from a host with a connection
	classLive
	classLinger
	numClasses
)

type counts [numClasses]int

// host has the accounts of a remote address. It exists while there is something in them.
type host struct {
	addr netip.Addr
	counts
}

// admit returns the account for a new half-open connection from an address. It reports false if
// that would exceed a limit.
func (m *Manager) admit(addr netip.Addr) (class, bool) {
	switch h := m.hosts[addr]; {
	case h == nil:
	case h.counts[classStranger]+h.counts[classKnown] >= maxHalfHost:
		return classNone, false
	case h.counts[classLive] > 0:
		return classKnown, m.total[classKnown] < maxHalfKnown
	}
	return classStranger, m.total[classStranger] < maxHalfStrangers &&
		m.strangers[subnet.Of(addr)] < maxHalfNetwork
}

// account moves a connection to another account.
func (c *conn) account(to class) {
	m := c.m
	if to != classLive {
		m.saved.forget(c)
	}
	if c.class != classNone {
		m.total[c.class]--
		c.host.counts[c.class]--
	}
	if c.class == classStranger {
		n := subnet.Of(c.host.addr)
		if m.strangers[n]--; m.strangers[n] == 0 {
			delete(m.strangers, n)
		}
	}
	c.class = to
	if to == classNone {
		if c.host != nil && c.host.counts == (counts{}) {
			delete(m.hosts, c.host.addr)
		}
		c.host = nil
		return
	}
	if c.host == nil {
		addr := ids.Plain(c.peer.Path.Remote)
		if c.host = m.hosts[addr]; c.host == nil {
			c.host = &host{addr: addr}
			m.hosts[addr] = c.host
		}
	}
	m.total[to]++
	c.host.counts[to]++
	if to == classStranger {
		m.strangers[subnet.Of(c.host.addr)]++
	}
	if to == classLive {
		m.saved.save(c)
	}
}

// crowded reports whether a connection that lingers exceeds a limit.
func (c *conn) crowded() bool {
	return c.m.total[classLinger] > maxLinger || c.host.counts[classLinger] > maxLingerHost
}
