package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// A process that is killed sends no DREQ, and hosts would notice only when keep alive fails, after
// 5 to 9 seconds. So live connections are written to memory that outlives the process, and the next
// process disconnects them.
//
// The memory has a header and entries: local and remote communication ID, QPN of the peer, its
// acknowledgment timeout, an address of each side. An entry is valid if its first communication ID,
// which is written last, is not 0. Connections between link-local addresses are left out.
const (
	savedHeader = "NVMFcm01"
	savedSize   = 48
	// savedConns is at least the maximum of queues (rdma.QueuesLimit). So the shares of hosts are
	// those of package admission, and no host takes entries that another one needs.
	savedConns = 1 << 16
	memorySize = len(savedHeader) + savedConns*savedSize
	// oldPiece connections of the process before are disconnected every oldTime, all within about
	// two seconds. So the socket takes the messages, and their hosts return one after another.
	oldPiece = 64
	oldTime  = 2 * time.Millisecond
)

// saved is the memory.
type saved struct {
	memory []byte
	free   []int         // entries
	old    []int         // entries of the process before, not disconnected yet
	next   time.Duration // when the next piece of old is disconnected
}

func (s *saved) entry(i int) []byte { return s.memory[len(savedHeader)+i*savedSize:][:savedSize] }

// resume begins to disconnect the connections of the process before, and to save.
func (m *Manager) resume() {
	if m.opt.Memory == nil {
		return
	}
	memory := m.opt.Memory(memorySize)
	if memory == nil {
		return
	}
	m.saved.memory = memory
	if string(memory[:len(savedHeader)]) != savedHeader { // new, or of another version
		clear(memory)
		copy(memory, savedHeader)
	}
	for i := range savedConns {
		if binary.NativeEndian.Uint32(m.saved.entry(i)) != 0 {
			m.saved.old = append(m.saved.old, i)
		} else {
			m.saved.free = append(m.saved.free, i)
		}
	}
	m.endOld()
	m.flush()
}

// endOld disconnects some connections of the process before, if it is time.
func (m *Manager) endOld() {
	s := &m.saved
	now := m.conn.Now()
	if len(s.old) == 0 || now < s.next {
		return
	}
	n := min(len(s.old), oldPiece)
	for _, i := range s.old[:n] {
		b := s.entry(i)
		if local := binary.NativeEndian.Uint32(b); m.conns[local] == nil {
			m.end(local, b)
		}
		clear(b)
		s.free = append(s.free, i)
	}
	s.old, s.next = s.old[n:], now+oldTime
}

// end sends the DREQ of an entry, and repeats it as for a connection of this process.
func (m *Manager) end(local uint32, b []byte) {
	c := &conn{m: m, local: local, remote: binary.NativeEndian.Uint32(b[4:]), tid: random64()}
	c.peer.QPN, c.peer.AckTimeout = binary.NativeEndian.Uint32(b[8:]), min(b[12], maxAckTimeout)
	c.peer.Path = wire.Path{
		Local:  netip.AddrFrom16([16]byte(b[16:])).Unmap(),
		Remote: netip.AddrFrom16([16]byte(b[32:])).Unmap(),
	}
	m.conns[local] = c
	c.disconnect()
	if c.account(classLinger); c.crowded() {
		m.free(c)
	}
}

// save writes a connection that has become live.
func (s *saved) save(c *conn) {
	p := &c.peer.Path
	n := len(s.free) - 1
	if n < 0 || c.saved != 0 || p.Local.Zone() != "" || p.Remote.Zone() != "" {
		return
	}
	c.saved = s.free[n] + 1
	s.free = s.free[:n]
	b := s.entry(c.saved - 1)
	binary.NativeEndian.PutUint32(b[4:], c.remote)
	binary.NativeEndian.PutUint32(b[8:], c.peer.QPN)
	b[12] = c.peer.AckTimeout
	local, remote := p.Local.As16(), p.Remote.As16()
	copy(b[16:], local[:])
	copy(b[32:], remote[:])
	binary.NativeEndian.PutUint32(b, c.local)
}

// forget removes a connection that is no longer live.
func (s *saved) forget(c *conn) {
	if c.saved != 0 {
		clear(s.entry(c.saved - 1))
		s.free = append(s.free, c.saved-1)
		c.saved = 0
	}
}
