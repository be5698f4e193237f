package cm

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/roce"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Device is the part of the soft device that connections need.
type Device interface {
	verbs.Device
	NewQP(pd verbs.PD, init verbs.QPInit) (QP, error)
	// HandOver takes a packet to another queue pair. The system merges packets with one source port
	// (UDP_GRO), and all arrive where the first one belongs.
	HandOver(p *wire.Packet)
}

// A QP is a queue pair to connect. The Manager calls it with its lock held.
type QP interface {
	verbs.QP
	// PSN is the first PSN that the peer will send.
	PSN() uint32
	// Connect makes it ready to receive and to send. It fails if the queue pair is connected, or in
	// the error state.
	Connect(roce.Peer) error
}

// Options are times and limits. Zero means Linux's value (infiniband/core/cma.c), unless noted.
type Options struct {
	// ResponseTimeout is the time for an answer, without the time on the way: 4.096 µs << n.
	// Default 20, which is 4.3 s.
	ResponseTimeout uint8
	// AckTimeout is the timeout of the queue pairs. Half of it is the time that a packet may be on
	// the way. Default 17, which is 0.54 s.
	AckTimeout uint8
	// Retries is the number of times that a REQ or a DREQ is repeated. Default 15.
	Retries int
	// Replies is the number of REPs that answer one REQ. Default 3; Linux sends 16, which a forged
	// source address turns into an attack.
	Replies int
	// Memory returns size bytes that outlive the process, or nil. The next process disconnects the
	// connections of one that was killed. Default: none.
	Memory func(size int) []byte
}

func (o *Options) setDefaults() {
	o.ResponseTimeout = cmp.Or(o.ResponseTimeout, 20)
	o.AckTimeout = cmp.Or(o.AckTimeout, 17)
	o.Retries = cmp.Or(o.Retries, 15)
	o.Replies = cmp.Or(o.Replies, 3)
}

// ibTime is 4.096 µs << n (section 12.7.6).
func ibTime(n uint8) time.Duration { return 4096 * time.Nanosecond << min(n, 31) }

// interval is the time until a message is sent again if the peer needs ibTime(wait) to answer it.
func (o *Options) interval(wait uint8) time.Duration {
	return ibTime(wait) + 2*ibTime(o.AckTimeout-1)
}

// patience is the longest time an MRA may ask for: 4.096 µs << n; by default Linux's 69 s.
func (o *Options) patience() uint8 { return min(o.ResponseTimeout+4, 31) }

// Stats are the counters of a Manager.
type Stats struct {
	Received, Sent atomic.Uint64 // messages
	Invalid        atomic.Uint64 // no messages: wrong queue key, class, length
	Repeated       atomic.Uint64 // sent again because no answer came
	Duplicates     atomic.Uint64 // received again
	Strays         atomic.Uint64 // for no connection, or not from the address of its peer
	Refused        atomic.Uint64 // requests refused without asking the program
	Dropped        atomic.Uint64 // requests beyond a limit
	Blocked        atomic.Uint64 // messages that the socket did not take
}

// A Manager is the communication manager of a machine. Any goroutine may call its methods.
type Manager struct {
	net  wire.Network
	conn wire.Conn
	dev  Device
	opt  Options
	guid uint64 // of the channel adapter

	stats Stats
	file  *os.File // duplicate of the descriptor of conn, for the Go runtime to wait on
	done  chan struct{}

	mu        sync.Mutex
	err       error // of the socket, for ever
	closed    bool
	conns     map[uint32]*conn // by our communication ID
	remotes   map[remoteKey]*conn
	queues    map[remoteKey]*conn
	listeners []*ID
	hosts     map[netip.Addr]*host
	strangers map[netip.Addr]int // half-open connections by network
	total     counts
	timers    list.Heap[conn] // by deadline
	armed     time.Duration
	psn       uint32
	saved     saved
	scratch   message // for the message being sent

	// noteMu is held for a moment by the engine, which must not wait for mu.
	noteMu sync.Mutex
	noted  []*conn
}

// remoteKey is an address with a number that is unique there: of a communication ID (remotes, for
// passive connections) or of a queue pair (queues).
type remoteKey struct {
	addr netip.Addr
	n    uint32
}

// New makes a Manager on the socket of queue pair 1, and starts its goroutine.
func New(net wire.Network, socket wire.Conn, dev Device, opt Options) (*Manager, error) {
	m := newManager(net, socket, dev, opt)
	if err := unix.SetNonblock(socket.FD(), true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(socket.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	m.file = os.NewFile(uintptr(dup), "communication manager")
	raw, err := m.file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, m.file.Close())
	}
	m.resume()
	m.done = make(chan struct{})
	go m.run(raw)
	return m, nil
}

func newManager(net wire.Network, socket wire.Conn, dev Device, opt Options) *Manager {
	opt.setDefaults()
	return &Manager{
		net: net, conn: socket, dev: dev, opt: opt, guid: random64(),
		conns: map[uint32]*conn{}, remotes: map[remoteKey]*conn{},
		queues: map[remoteKey]*conn{}, hosts: map[netip.Addr]*host{},
		strangers: map[netip.Addr]int{},
	}
}

func (m *Manager) run(raw syscall.RawConn) {
	defer close(m.done)
	_ = raw.Read(func(fd uintptr) bool { // fails when the file is closed
		// The runtime waits for new packets, so none may be left. After a batch of bad packets step
		// has nothing to do.
		for m.step() || m.open() && readable(fd) {
		}
		return false
	})
}

func (m *Manager) open() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.closed && m.err == nil
}

func readable(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0 && err == nil
}

// Close ends the goroutine. Connections are forgotten without a message. The caller closes the
// socket.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	err := m.file.Close()
	<-m.done
	return err
}

// TakeRequests decides whether connection requests are handled, or wait in a socket that outlives
// the process (wire.UDPOptions.Sockets).
func (m *Manager) TakeRequests(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.conn.(interface{ TakeRequests(on bool) error }); ok {
		m.err = errors.Join(m.err, c.TakeRequests(on))
	}
}

// Stats returns the counters.
func (m *Manager) Stats() *Stats { return &m.stats }

// step handles everything that is due, and reports whether there is more. Others must get the lock
// in between.
func (m *Manager) step() (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.err != nil {
		return false
	}
	packets, err := m.conn.Recv()
	if err != nil {
		m.err = err
		return false
	}
	for i := range packets {
		m.receive(&packets[i])
	}
	m.endOld()
	more = m.takeNotes()
	more = m.expire() || more
	m.flush()
	return more || len(packets) > 0 || m.conn.More()
}

// maxNoted is the largest number of connections with notes that a step takes.
const maxNoted = 64

// takeNotes takes notes of the engines, and reports whether there are more.
func (m *Manager) takeNotes() (more bool) {
	m.noteMu.Lock()
	n := min(len(m.noted), maxNoted)
	noted := m.noted[:n]
	m.noted = m.noted[n:]
	if more = len(m.noted) > 0; !more {
		m.noted = nil
	}
	m.noteMu.Unlock()
	for _, c := range noted {
		c.takeNotes()
	}
	return more
}

// flush sends the messages of a step and sets the timer. Every method that may have sent something
// or changed a deadline ends with it.
func (m *Manager) flush() {
	m.conn.Flush()
	at := time.Duration(0)
	if c, first := m.timers.First(); c != nil {
		at = max(time.Duration(first), 1)
	}
	if len(m.saved.old) > 0 && (at == 0 || m.saved.next < at) {
		at = m.saved.next
	}
	if at != m.armed {
		m.armed = at
		m.conn.SetTimer(at)
	}
}

// qkey is the queue key of queue pair 1 (section 10.2.4).
const qkey = 0x80010000

const packetSize = packet.BTHSize + packet.DETHSize + madSize

// send sends a message.
func (m *Manager) send(path *wire.Path, mad []byte) {
	b := m.conn.Alloc(path, packetSize)
	if b == nil {
		m.stats.Blocked.Add(1) // as if it were lost on the way
		return
	}
	m.psn++
	bth := packet.BTH{
		Opcode: packet.UDSendOnly, MigReq: true, PKey: packet.PKeyDefault, QPN: wire.CMQPN,
		PSN: m.psn,
	}
	bth.Put(b)
	packet.DETH{QKey: qkey, SrcQP: wire.CMQPN}.Put(b[packet.BTHSize:])
	copy(b[packet.BTHSize+packet.DETHSize:], mad)
	m.stats.Sent.Add(1)
}

// answer sends a message that belongs to no connection to the sender of a packet.
func (m *Manager) answer(p *wire.Packet, a *message) {
	var mad [madSize]byte
	a.encode(mad[:])
	m.send(&wire.Path{Local: p.Local.Addr(), Remote: p.Remote.Addr()}, mad[:])
}

// reject answers a message with a REJ.
func (m *Manager) reject(p *wire.Packet, q *message, of uint8, reason uint16, info ...byte) {
	m.stats.Refused.Add(1)
	a := message{attr: attrREJ, tid: q.tid, local: q.remote, remote: q.local}
	a.of, a.reason = of, reason
	a.infoSize = uint8(copy(a.info[:], info))
	m.answer(p, &a)
}

// receive handles a packet to queue pair 1.
func (m *Manager) receive(p *wire.Packet) {
	var h packet.Header
	q := &m.scratch
	ok := h.Parse(p.Data)
	if ok && h.QPN != wire.CMQPN {
		m.dev.HandOver(p)
		return
	}
	if !ok || h.Kind != packet.KindDatagram ||
		h.DETH.QKey != qkey || h.PKey&0x7fff != packet.PKeyDefault&0x7fff || !q.decode(h.Payload) {
		m.stats.Invalid.Add(1)
		return
	}
	m.stats.Received.Add(1)
	switch q.attr {
	case attrREQ:
		m.receiveREQ(p, q)
	case attrREP:
		m.receiveREP(p, q)
	case attrMRA:
		m.receiveMRA(p, q)
	case attrREJ:
		m.receiveREJ(p, q)
	case attrRTU:
		m.receiveRTU(p, q)
	case attrDREQ:
		m.receiveDREQ(p, q)
	case attrDREP:
		m.receiveDREP(p, q)
	}
}

// find returns the connection of a message. It must name the communication IDs of both sides and
// come from the address of the peer.
func (m *Manager) find(p *wire.Packet, q *message) *conn {
	if c := m.findLocal(p, q); c != nil && c.remote == q.local {
		return c
	}
	return nil
}

// findLocal is like find for the first answer of the passive side, with its new communication ID.
func (m *Manager) findLocal(p *wire.Packet, q *message) *conn {
	c := m.conns[q.remote]
	if c == nil || ids.Plain(p.Remote.Addr()) != ids.Plain(c.peer.Path.Remote) ||
		ids.Plain(p.Local.Addr()) != ids.Plain(c.peer.Path.Local) {
		return nil
	}
	return c
}

func (m *Manager) stray() { m.stats.Strays.Add(1) }

// maxExpired is the largest number of deadlines that a step handles.
const maxExpired = 64

// expire handles deadlines that have passed, and reports whether there may be more.
func (m *Manager) expire() (more bool) {
	now := m.conn.Now()
	for range maxExpired {
		c, at := m.timers.First()
		if c == nil || time.Duration(at) > now {
			return false
		}
		m.stop(c)
		c.expired()
	}
	return true
}

// start sets the deadline of a connection.
func (m *Manager) start(c *conn, after time.Duration) {
	m.timers.Set(c, &c.timer, int64(m.conn.Now()+after))
}

func (m *Manager) stop(c *conn) { m.timers.Remove(&c.timer) }

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}
