package mpa

import (
	"net"
	"net/netip"
	"slices"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
)

// Limits on connections that peers open and leave. A host is an address.
const (
	// maxHalfHost is the number of connections of a host that are not established. A further one
	// is closed.
	maxHalfHost = 128
	// maxHalf is the number of connections without a request so far. A further one takes the
	// place of the oldest. An honest host needs only a moment, so others do not keep it out.
	maxHalf = 512
	// maxDrained is the number of closed connections that are drained. Others are closed at once.
	maxDrained = 256
	// drainBytes is the largest number of bytes that a peer may send after the end.
	drainBytes = 1 << 20
)

// admit counts a new connection and makes room for it. It returns false if its host has too many.
// m.mu is held.
func (m *Manager) admit(c net.Conn) bool {
	addr := remoteAddr(c)
	if m.closed || m.hosts[addr] >= maxHalfHost {
		m.stats.Dropped.Add(1)
		return false
	}
	m.hosts[addr]++
	m.half = append(m.half, c)
	if len(m.half) > maxHalf {
		m.stats.Dropped.Add(1)
		_ = m.half[0].Close() // its goroutine notices
		m.half = slices.Delete(m.half, 0, 1)
	}
	return true
}

// arrived ends the time in which a connection may have to give way. m.mu is held.
func (m *Manager) arrived(c net.Conn) {
	m.half = slices.DeleteFunc(m.half, func(x net.Conn) bool { return x == c })
}

// leave ends the count of a connection that is not established. m.mu is held.
func (m *Manager) leave(addr netip.Addr) {
	if m.hosts[addr]--; m.hosts[addr] <= 0 {
		delete(m.hosts, addr)
	}
}

func remoteAddr(c net.Conn) netip.Addr { return ids.Plain(addrPort(c.RemoteAddr()).Addr()) }

// addrPort returns a TCP address; IPv4 is not mapped.
func addrPort(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
