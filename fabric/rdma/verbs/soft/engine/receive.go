package engine

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// receive delivers one batch of packets and those that other engines have handed over. It reports
// whether more may wait.
func (e *Engine) receive() (more bool) {
	if e.closed {
		return false
	}
	packets, err := e.conn.Recv()
	// After Recv: it takes away the reason why the timer woke the caller, so deadlines must be
	// compared with a later time.
	e.refresh()
	for i := range packets {
		e.deliver(&packets[i], true)
	}
	if err != nil {
		e.dev.fail(fmt.Errorf("receive on engine %d: %w", e.index, err))
	}
	return e.hand.take(e) || len(packets) == wire.MaxBatch
}

// deliver gives a packet to its endpoint. A packet of another engine's is handed over if that is
// allowed: UDP_GRO joins packets that share a source port, and all of them arrive where the first
// one belongs.
func (e *Engine) deliver(p *wire.Packet, mayHandOver bool) {
	if !e.header.Parse(p.Data) {
		e.stats.Unparsed.Add(1)
		return
	}
	if to := wire.Steer(e.header.QPN, len(e.dev.engines)); to != e.index && mayHandOver {
		e.dev.handOver(p, to)
		return
	}
	h := e.endpoints[e.header.QPN]
	if h == nil {
		e.stats.Unknown.Add(1)
		return
	}
	h.ep.Receive(p, &e.header)
	e.Schedule(h)
}

// run runs endpoints in turn and reports whether others wait that could send.
func (e *Engine) run() (more bool) {
	for range maxRuns {
		h := e.queue.Pop()
		if h == nil {
			return false
		}
		if h.ep.Run() {
			e.Schedule(h)
		}
		if e.conn.blocked {
			return false // the socket wakes us
		}
	}
	return !e.queue.Empty()
}

// HandOver gives a packet to the engine of its queue pair. The communication manager calls it for
// packets of the reliable transport that arrived at its socket. The packet is copied. Any goroutine
// may call it.
func (d *Device) HandOver(p *wire.Packet) {
	if h, ok := wire.ParseBTH(p.Data); ok {
		d.handOver(p, wire.Steer(h.QPN, len(d.engines)))
	}
}

func (d *Device) handOver(p *wire.Packet, to int) {
	if to >= len(d.engines) {
		// To the communication manager, whose peers send from a port that only they use, so such a
		// packet is rare; they repeat it.
		d.engines[0].stats.HandOverLost.Add(1)
		return
	}
	e := d.engines[to]
	if !e.hand.put(p) {
		e.stats.HandOverLost.Add(1)
		return
	}
	e.stats.HandedOver.Add(1)
	if e.sleepers.Load() > 0 {
		e.conn.Wake()
	}
}

// handOverSlots is the size of the ring for packets of other engines: a batch of each of a few
// engines at once. It is a power of two.
const handOverSlots = 256

// handOver is a bounded ring with many producers, the other engines. Their packets are copied into
// slots, so nothing is allocated. The goroutine that puts a packet owns a slot between its two
// stores; the consumer waits for nobody, it comes again.
type handOver struct {
	slots atomic.Pointer[[handOverSlots]handOverSlot] // made at first use
	tail  atomic.Uint64
	head  uint64 // the holder's
}

type handOverSlot struct {
	// full is the position of the packet in the slot and 1, or of the next packet that may use it.
	turn          atomic.Uint64
	local, remote netip.AddrPort
	ce            bool
	n             int
	data          [wire.MaxPacket]byte
}

// put copies a packet into the ring. It reports false if the ring is full. Any goroutine may call
// it.
func (r *handOver) put(p *wire.Packet) bool {
	slots := r.slots.Load()
	if slots == nil {
		slots = new([handOverSlots]handOverSlot)
		for i := range slots {
			slots[i].turn.Store(uint64(i))
		}
		if !r.slots.CompareAndSwap(nil, slots) {
			slots = r.slots.Load()
		}
	}
	for {
		pos := r.tail.Load()
		s := &slots[pos%handOverSlots]
		switch turn := s.turn.Load(); {
		case turn < pos:
			return false // not taken out yet
		case turn == pos && r.tail.CompareAndSwap(pos, pos+1):
			s.local, s.remote, s.ce = p.Local, p.Remote, p.CE
			s.n = copy(s.data[:], p.Data)
			s.turn.Store(pos + 1)
			return true
		}
	}
}

// take delivers packets, at most wire.MaxBatch, and reports whether more wait. Engine held.
func (r *handOver) take(e *Engine) (more bool) {
	slots := r.slots.Load()
	if slots == nil {
		return false
	}
	for range wire.MaxBatch {
		s := &slots[r.head%handOverSlots]
		if s.turn.Load() != r.head+1 {
			return false
		}
		p := wire.Packet{Local: s.local, Remote: s.remote, CE: s.ce, Data: s.data[:s.n]}
		e.deliver(&p, false)
		s.turn.Store(r.head + handOverSlots)
		r.head++
	}
	return slots[r.head%handOverSlots].turn.Load() == r.head+1
}

// fail reports that the device is of no more use.
func (d *Device) fail(err error) {
	if d.err.CompareAndSwap(nil, &err) {
		d.Raise(verbs.AsyncEvent{Type: verbs.AsyncDeviceFatal})
	}
}
