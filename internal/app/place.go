package app

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// place gives a new connection to the reactor with the least load, and among those with the same to
// one that is near: on the processor where its packets come in, or on the NUMA node of its device;
// or to the next in turn. Queue 0 has no load worth spreading; RDMA tells it apart now, TCP only
// later, and does not count it from then on.
func (s *Server) place(conn fabric.Conn) {
	info := conn.Info()
	w := s.workers[0]
	if info.QID != 0 {
		n, near := int(s.next.Add(1)%uint64(len(s.workers))), nearness(conn)
		w = s.workers[n]
		for _, other := range append(s.workers[n+1:len(s.workers):len(s.workers)],
			s.workers[:n]...) {
			more := load(other.groups[info.Transport]) - load(w.groups[info.Transport])
			if more < 0 || more == 0 && near(other) && !near(w) {
				w = other
			}
		}
	}
	if err := w.groups[info.Transport].Adopt(conn); err != nil {
		s.log.Warn("connection refused", "remote", info.Remote, "err", err)
	}
}

// nearness tells reactors that are near to a connection from others, as far as that is known.
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

// load is how many I/O queues a group has, as far as it knows.
func load(g fabric.Group) int {
	if l, ok := g.(fabric.LoadReporter); ok {
		return l.Load()
	}
	return 0
}
