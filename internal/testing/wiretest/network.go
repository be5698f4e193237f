// Package wiretest implements an IP network in memory for the soft RDMA stack. It passes RoCEv2
// packets between hosts of one process. It can lose, double, delay, reorder and corrupt them, and
// can run by a manual clock. It builds and checks the ICRC of real packets.
package wiretest

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// Options are the properties of a network and its faults. The zero value has no
// faults. Probabilities are per packet, from 0 to 1.
type Options struct {
	// Loss, Duplicate and Corrupt are the probabilities that a packet is lost, arrives twice, and
	// arrives with one to four bytes changed.
	Loss, Duplicate, Corrupt float64
	// Reorder is the probability that a packet takes up to a millisecond longer than Delay, so that
	// later ones overtake it.
	Reorder float64
	// Mark is the probability that a packet that allows it (ECT0) arrives with CE.
	Mark float64
	// Refuse is the probability, per Flush, that the socket takes nothing this time.
	Refuse float64
	// Delay is the time of a packet on the way.
	Delay time.Duration
	// Filter, if not nil, is called with each packet sent, before the other faults; false loses it.
	// It may change Data, as an attacker would: the ICRC is computed afterwards. It must not call
	// methods of the network, and only one call runs at a time.
	Filter func(p *wire.Packet) bool
	// Queue is the number of packets that wait at a socket; further ones are lost. 0 means 4,096.
	Queue int
	// Seed makes the faults repeatable.
	Seed uint64
	// Manual makes Now stand still but for Advance. Otherwise it is the real time.
	Manual bool
	// MTU is that of the links; 0 means 9,000.
	MTU int
}

// A Network is an IP network in memory. It shows the machine as many hosts as a test needs.
//
// A Path on it may have any local address, so that a test can forge it.
type Network struct {
	start  time.Time
	manual bool
	clock  atomic.Int64 // the manual clock, or what Advance has added to the real time

	mu    sync.Mutex
	opts  Options
	rand  *rand.Rand
	hosts map[netip.Addr]*host
	conns []*conn // open
	free  []*datagram
	seq   uint64
	icrc  packet.ICRC
}

// A datagram is a packet on the way, with its ICRC.
type datagram struct {
	p        wire.Packet
	at       time.Duration // of the arrival
	seq      uint64        // order of packets that arrive at the same time
	allowsCE bool
	buf      [packet.MaxSize + packet.ICRCSize]byte
}

// New makes a network without hosts.
func New(opts Options) *Network {
	m := &Network{
		start: time.Now(), manual: opts.Manual, opts: withDefaults(opts),
		rand: rand.New(rand.NewPCG(opts.Seed, opts.Seed)), hosts: map[netip.Addr]*host{},
	}
	m.clock.Store(1) // zero stops a timer, so it is not a time
	return m
}

func withDefaults(opts Options) Options {
	if opts.Queue == 0 {
		opts.Queue = 4096
	}
	if opts.MTU == 0 {
		opts.MTU = 9000
	}
	return opts
}

// SetFaults replaces the options from now on, except for Seed and Manual. Packets on the way are
// not affected.
func (m *Network) SetFaults(opts Options) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opts = withDefaults(opts)
}

// Host adds a host with an interface of its name. It panics if a host has one of the addresses
// already.
func (m *Network) Host(name string, addrs ...netip.Addr) wire.Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &host{m: m, name: name, addrs: addrs}
	for _, a := range addrs {
		if m.hosts[a] != nil {
			panic(fmt.Sprintf("%s: host %s has %s already", name, m.hosts[a].name, a))
		}
		m.hosts[a] = h
	}
	return h
}

// Advance moves the clock and wakes the Conns for which a packet has arrived or the timer is due.
func (m *Network) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock.Add(int64(d))
	now := m.now()
	for _, c := range m.conns {
		if at, ok := c.next(); ok && at <= now {
			c.Wake()
		}
	}
}

// Next returns the time until the next arrival or timer, 0 if it is due. It reports false if there
// is none.
func (m *Network) Next() (d time.Duration, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		if at, soon := c.next(); soon && (!ok || at < d) {
			d, ok = at, true
		}
	}
	return max(0, d-m.now()), ok
}

func (m *Network) now() time.Duration {
	now := time.Duration(m.clock.Load())
	if !m.manual {
		now += time.Since(m.start)
	}
	return now
}

func (m *Network) chance(p float64) bool { return p > 0 && m.rand.Float64() < p }

func (m *Network) get() *datagram {
	if n := len(m.free); n > 0 {
		d := m.free[n-1]
		m.free = m.free[:n-1]
		return d
	}
	return new(datagram)
}

// send takes a packet, without its ICRC, through Filter and the faults to its socket.
func (m *Network) send(d *datagram) {
	if m.opts.Filter != nil && !m.opts.Filter(&d.p) {
		m.free = append(m.free, d)
		return
	}
	n := len(d.p.Data)
	d.p.Data = d.buf[:n+packet.ICRCSize]
	m.icrc.Set(d.p.Local.Addr(), d.p.Remote.Addr(), d.p.Local.Port(), wire.Port)
	m.icrc.Put(d.p.Data)
	if m.chance(m.opts.Duplicate) {
		e := m.get()
		e.p, e.allowsCE = d.p, d.allowsCE
		e.p.Data = e.buf[:copy(e.buf[:], d.p.Data)]
		m.deliver(e)
	}
	m.deliver(d)
}

func (m *Network) deliver(d *datagram) {
	if m.chance(m.opts.Corrupt) {
		for range 1 + m.rand.IntN(4) {
			d.buf[m.rand.IntN(len(d.p.Data))] ^= byte(1 + m.rand.IntN(255))
		}
	}
	c := m.socket(d)
	if c == nil || m.chance(m.opts.Loss) {
		m.free = append(m.free, d)
		return
	}
	if len(c.queue) >= m.opts.Queue {
		c.stats.Overflows.Add(1)
		m.free = append(m.free, d)
		return
	}
	d.p.CE = d.allowsCE && m.chance(m.opts.Mark)
	m.seq++
	d.at, d.seq = m.now()+m.opts.Delay, m.seq
	if m.chance(m.opts.Reorder) {
		d.at += time.Duration(m.rand.Int64N(int64(time.Millisecond)))
	}
	heap.Push(&c.queue, d)
	c.rearm()
}

// socket returns the socket that a packet goes to, nil if there is none.
func (m *Network) socket(d *datagram) *conn {
	h := m.hosts[d.p.Remote.Addr()]
	if h == nil || len(h.conns) == 0 {
		return nil
	}
	qpn := binary.BigEndian.Uint32(d.buf[4:]) & packet.PSNMask
	c := h.conns[wire.Steer(qpn, len(h.conns)-1)]
	if c.closed {
		return nil
	}
	return c
}

// arrivals is a heap of packets on the way to a socket.
type arrivals []*datagram

func (a arrivals) Len() int { return len(a) }

func (a arrivals) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}

func (a arrivals) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)   { *a = append(*a, x.(*datagram)) }

func (a *arrivals) Pop() any {
	n := len(*a) - 1
	d := (*a)[n]
	*a = (*a)[:n]
	return d
}

// A host is the Network of a host.
type host struct {
	m     *Network
	name  string
	addrs []netip.Addr
	conns []*conn
}

// Open is Network.Open.
func (h *host) Open(n int) ([]wire.Conn, error) {
	if n < 1 || n > wire.MaxEngines {
		return nil, fmt.Errorf("%d engines: 1 to %d", n, wire.MaxEngines)
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if len(h.conns) > 0 {
		return nil, fmt.Errorf("host %s: port %d is taken", h.name, wire.Port)
	}
	conns := make([]wire.Conn, 0, n+1)
	for i := range n + 1 {
		c := &conn{host: h, port: 50000 + uint16(i)}
		var err error
		if c.Streams, err = wire.NewStreams(); err != nil {
			for _, c := range h.conns {
				_ = c.Streams.Close()
			}
			h.conns = nil
			return nil, err
		}
		h.conns = append(h.conns, c)
		conns = append(conns, c)
	}
	h.m.conns = append(h.m.conns, h.conns...)
	return conns, nil
}

// Addrs is Network.Addrs.
func (h *host) Addrs() ([]netip.Addr, error) { return h.addrs, nil }

// Route is Network.Route.
func (h *host) Route(local, remote netip.Addr) (netip.Addr, int, error) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	mtu, err := wire.PathMTU(h.m.opts.MTU)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	for _, a := range h.addrs {
		if a.Is4() == remote.Is4() && (a == local || !local.IsValid() || local.IsUnspecified()) {
			return a, mtu, nil
		}
	}
	return netip.Addr{}, 0, fmt.Errorf("host %s: no route from %s to %s", h.name, local, remote)
}

// A conn is a socket of a network. Its methods take the lock of the network.
type conn struct {
	*wire.Streams // for FD, Wake and the timer
	host          *host
	port          uint16 // source port
	stats         wire.Stats
	batch         []*datagram
	refused       bool // the last Flush
	packets       []wire.Packet
	scrap         [packet.MaxSize]byte

	// Guarded by the lock of the network, like the timer of Streams:
	queue    arrivals
	received []*datagram // packets of the last Recv
	icrc     packet.ICRC
	timed    time.Duration // by SetTimer
	closed   bool

	more bool // see More
}

// Now is Conn.Now.
func (c *conn) Now() time.Duration { return c.host.m.now() }

// ReceiveBuffer is Conn.ReceiveBuffer.
func (c *conn) ReceiveBuffer() int {
	c.host.m.mu.Lock()
	defer c.host.m.mu.Unlock()
	return c.host.m.opts.Queue * packet.MaxSize
}

// Stats is Conn.Stats.
func (c *conn) Stats() *wire.Stats { return &c.stats }

// SetTimer is Conn.SetTimer.
func (c *conn) SetTimer(at time.Duration) {
	c.host.m.mu.Lock()
	defer c.host.m.mu.Unlock()
	c.timed = at
	c.rearm()
}

// next returns the time of the next arrival or timer.
func (c *conn) next() (at time.Duration, ok bool) {
	if len(c.queue) > 0 {
		at, ok = c.queue[0].at, true
	}
	if c.timed != 0 && (!ok || c.timed < at) {
		at, ok = c.timed, true
	}
	return at, ok
}

// rearm makes the descriptor readable when something is due.
func (c *conn) rearm() {
	at, ok := c.next()
	switch {
	case !ok:
		c.Streams.SetTimer(0)
	case at <= c.Now():
		c.Wake()
	case !c.host.m.manual:
		c.Streams.SetTimer(c.Streams.Now() + at - c.Now())
	}
}

// Recv is Conn.Recv.
func (c *conn) Recv() ([]wire.Packet, error) {
	m := c.host.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	if _, err := c.Streams.Recv(); err != nil {
		return nil, err
	}
	m.free = append(m.free, c.received...)
	c.received, c.packets = c.received[:0], c.packets[:0]
	now := m.now()
	for len(c.queue) > 0 && c.queue[0].at <= now && len(c.received) < wire.MaxBatch {
		d := heap.Pop(&c.queue).(*datagram)
		c.received = append(c.received, d)
		c.icrc.Set(d.p.Local.Addr(), d.p.Remote.Addr(), d.p.Local.Port(), wire.Port)
		if !c.icrc.Check(d.p.Data, false) {
			c.stats.BadICRC.Add(1)
			continue
		}
		c.stats.Received.Add(1)
		c.packets = append(c.packets, wire.Packet{
			Local: d.p.Remote, Remote: d.p.Local, CE: d.p.CE,
			Data: d.p.Data[:len(d.p.Data)-packet.ICRCSize],
		})
	}
	if c.timed <= now {
		c.timed = 0
	}
	if c.more = len(c.queue) > 0 && c.queue[0].at <= now; !c.more {
		c.rearm()
	}
	return c.packets, nil
}

// More is Conn.More.
func (c *conn) More() bool { return c.more }

// Alloc is Conn.Alloc.
func (c *conn) Alloc(p *wire.Path, n int) []byte {
	if len(c.batch) == wire.MaxBatch {
		if c.Flush(); len(c.batch) == wire.MaxBatch {
			return nil
		}
	}
	local, remote := p.Local.Unmap(), p.Remote.Unmap()
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		c.stats.Dropped.Add(1)
		return c.scrap[:n]
	}
	m := c.host.m
	m.mu.Lock()
	d := m.get()
	m.mu.Unlock()
	d.p = wire.Packet{
		Local: netip.AddrPortFrom(local, c.port), Remote: netip.AddrPortFrom(remote, wire.Port),
		Data: d.buf[:n],
	}
	d.allowsCE = p.TOS&3 == wire.ECT0
	c.batch = append(c.batch, d)
	return d.p.Data
}

// Flush is Conn.Flush.
func (c *conn) Flush() {
	if len(c.batch) == 0 {
		return
	}
	m := c.host.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.refused = !c.refused && m.chance(m.opts.Refuse); c.refused {
		c.stats.Blocked.Add(1)
		c.Wake()
		return
	}
	c.stats.Sent.Add(uint64(len(c.batch)))
	for _, d := range c.batch {
		m.send(d)
	}
	c.batch = c.batch[:0]
}

// Close is Conn.Close.
func (c *conn) Close() error {
	m := c.host.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	_ = c.Streams.Close()
	m.conns = slices.DeleteFunc(m.conns, func(o *conn) bool { return o == c })
	if !slices.ContainsFunc(c.host.conns, func(o *conn) bool { return !o.closed }) {
		c.host.conns = nil
	}
	return nil
}
