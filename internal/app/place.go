package app

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// listen listens at an address for the connections of a port.
func (s *Server) listen(at fabric.Addr, portID uint16) (fabric.Listener, error) {
	t := s.transports[at.Transport]
	switch {
	case t == nil:
		return nil, fmt.Errorf("listen at %v: %w", at, verbs.ErrNotBuilt)
	case at.Transport == nvme.TransportRDMA && !s.external: // tests have no real device
		if err := checkMemlock(len(s.workers), s.atStart.Reactors.Memory); err != nil {
			return nil, fmt.Errorf("listen at %v: %w", at, err)
		}
	}
	return t.Listen(at, portID, s.place)
}

// place gives a new connection to the reactor with the least load. Of reactors with the same load
// it takes one that is near, on the CPU where the connection's packets arrive or on the NUMA node
// of its device, else the next in turn. An admin queue is no load worth spreading: RDMA recognizes
// it here and it goes to the first reactor, TCP only later and does not count it from then on.
func (s *Server) place(conn fabric.Conn) {
	info := conn.Info()
	w := s.workers[0]
	if info.QID != 0 {
		n, near := int(s.next.Add(1)%uint64(len(s.workers))), nearness(conn)
		w = s.workers[n]
		for _, other := range append(s.workers[n+1:len(s.workers):len(s.workers)],
			s.workers[:n]...) {
			more := other.groups[info.Transport].Load() - w.groups[info.Transport].Load()
			if more < 0 || more == 0 && near(other) && !near(w) {
				w = other
			}
		}
	}
	if err := w.groups[info.Transport].Adopt(conn); err != nil {
		s.peers.Peer(info.Remote).Warn("connection refused", "err", err)
	}
}

// nearness returns a function that reports whether a reactor is near to a connection, as far as
// that is known.
func nearness(conn fabric.Conn) func(w *worker) bool {
	cpu, node := -1, sys.NoNode
	if c, ok := conn.(fabric.CPUConn); ok {
		cpu = c.CPU()
	}
	if c, ok := conn.(fabric.NodeConn); ok {
		node = c.Node()
	}
	return func(w *worker) bool {
		return cpu >= 0 && w.cpu == cpu || node != sys.NoNode &&
			w.node == node
	}
}
