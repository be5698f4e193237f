package engine

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// receive delivers one batch of packets and another from the inbox, and reports whether more wait.
func (e *Engine) receive() (more bool) {
	packets, err := e.conn.Recv()
	// After Recv: that takes away the timer's reason to wake us, so deadlines must be compared with
	// a later time.
	e.now = e.conn.Now()
	for i := range packets {
		p := &packets[i]
		switch {
		case !e.header.Parse(p.Data):
			e.stats.Unparsed.Add(1)
		case e.dev.steer(e.header.QPN) != e.index:
			// UDP_GRO joins packets of one source port, and all arrive where the first one belongs.
			e.dev.handOver(p, e.header.QPN)
		default:
			e.deliver(p)
		}
	}
	if err != nil {
		e.dev.fail(fmt.Errorf("receive on engine %d: %w", e.index, err))
	}
	return e.receiveInbox() || e.conn.More()
}

// deliver gives the packet that is in e.header to its endpoint.
func (e *Engine) deliver(p *wire.Packet) {
	e.count.Add(1)
	h := e.endpoints[e.header.QPN]
	if h == nil {
		e.stats.Unknown.Add(1)
		return
	}
	h.ep.Receive(p, &e.header)
	e.Schedule(h)
}

// run runs endpoints in turn, each at most once, until they have sent enough. It reports whether
// others wait that could send.
func (e *Engine) run() (more bool) {
	last := e.queue.Last()
	for range maxRuns {
		h := e.queue.Pop()
		if h == nil {
			return false
		}
		e.count.Add(1)
		if h.ep.Run() {
			e.Schedule(h)
		}
		if e.conn.blocked {
			return false // the socket wakes us
		}
		if h == last || e.conn.sent >= maxSent {
			break
		}
	}
	return !e.queue.Empty()
}

// HandOver gives a packet to the engine of its queue pair. The communication manager calls it for
// packets at its socket that are for another queue pair than its own. The packet is copied. Any
// goroutine may call it.
func (d *Device) HandOver(p *wire.Packet) {
	if h, ok := packet.ParseBTH(p.Data); ok {
		d.handOver(p, h.QPN)
	}
}

func (d *Device) steer(qpn uint32) int { return wire.Steer(qpn, len(d.engines)) }

func (d *Device) handOver(p *wire.Packet, qpn uint32) {
	to := d.steer(qpn)
	if to == len(d.engines) {
		// For the communication manager. The managers of peers send from a port of their own, so
		// this is rare, and they repeat their messages.
		d.engines[0].stats.HandOverLost.Add(1)
		return
	}
	e := d.engines[to]
	if !e.inbox.put(p) {
		e.stats.HandOverLost.Add(1)
		return
	}
	e.stats.HandedOver.Add(1)
	if e.sleepers.Load() > 0 {
		e.conn.Wake()
	}
}

// inboxSlots is the number of packets that wait in an inbox: a few batches. It is a power of two.
const inboxSlots = 256

// inbox is a ring of packets for an engine, put there by other goroutines. A packet is copied into
// its slot, so nothing is allocated for it.
type inbox struct {
	slots atomic.Pointer[[inboxSlots]inboxSlot] // made at first use
	tail  atomic.Uint64
	// The engine's.
	head   uint64
	packet wire.Packet
}

// inboxSlot is a slot for the packets at its positions: one in inboxSlots. turn is the position of
// the next packet that may be put in, and 1 more when it is in.
type inboxSlot struct {
	turn          atomic.Uint64
	local, remote netip.AddrPort
	ce            bool
	n             int
	data          [packet.MaxSize]byte
}

// put copies a packet into the ring. It reports false if the ring is full. Any goroutine may call
// it.
func (b *inbox) put(p *wire.Packet) bool {
	slots := b.slots.Load()
	if slots == nil {
		slots = new([inboxSlots]inboxSlot)
		for i := range slots {
			slots[i].turn.Store(uint64(i))
		}
		if !b.slots.CompareAndSwap(nil, slots) {
			slots = b.slots.Load()
		}
	}
	for {
		pos := b.tail.Load()
		s := &slots[pos%inboxSlots]
		switch turn := s.turn.Load(); {
		case turn < pos:
			return false // an older packet is in it
		case turn == pos && b.tail.CompareAndSwap(pos, pos+1):
			s.local, s.remote, s.ce = p.Local, p.Remote, p.CE
			s.n = copy(s.data[:], p.Data)
			s.turn.Store(pos + 1)
			return true
		}
	}
}

// receiveInbox delivers packets of the inbox, at most a batch, and reports whether more wait.
func (e *Engine) receiveInbox() (more bool) {
	b := &e.inbox
	slots := b.slots.Load()
	if slots == nil {
		return false
	}
	for n := 0; ; n++ {
		s := &slots[b.head%inboxSlots]
		if s.turn.Load() != b.head+1 {
			return false
		}
		if n == wire.MaxBatch {
			return true
		}
		b.packet = wire.Packet{Local: s.local, Remote: s.remote, CE: s.ce, Data: s.data[:s.n]}
		if e.header.Parse(b.packet.Data) {
			e.deliver(&b.packet)
		}
		s.turn.Store(b.head + inboxSlots)
		b.head++
	}
}

// fail reports that the device is of no more use.
func (d *Device) fail(err error) {
	if d.err.CompareAndSwap(nil, &err) {
		d.Raise(verbs.AsyncEvent{Type: verbs.AsyncDeviceFatal})
	}
}
