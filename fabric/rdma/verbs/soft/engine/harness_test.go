package engine

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

func TestMain(m *testing.M) { testutil.Main(m) }

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// device opens a device on a host of a network. The test closes it at its end.
func device(t testing.TB, mem *wiretest.Network, name string, addr netip.Addr, o Options) *Device {
	t.Helper()
	d := testutil.Value(New(mem.Host(name, addr), o))(t)
	t.Cleanup(func() {
		testutil.Check(t, d.Close())
		testutil.Check(t, d.Err())
	})
	return d
}

// alone opens device A on a network of its own, on which only the test moves packets.
func alone(t testing.TB, o Options) *Device {
	t.Helper()
	return device(t, wiretest.New(wiretest.Options{Manual: true}), "a", addrA, o)
}

// pair opens devices A and B on a network on which only the test moves packets.
func pair(t testing.TB, o Options) (mem *wiretest.Network, a, b *Device) {
	t.Helper()
	mem = wiretest.New(wiretest.Options{Manual: true})
	return mem, device(t, mem, "a", addrA, o), device(t, mem, "b", addrB, o)
}

// endpoint is a queue pair that counts, and sends numbered packets.
type endpoint struct {
	Handle
	e   *Engine
	num uint32

	// For the holder.
	received, runs, expired int
	last                    uint64 // number in the last packet
	onReceive               func(*endpoint)
	onRun                   func(*endpoint) bool
	onExpire                func(*endpoint)

	path wire.Path
	to   uint32
	send int    // packets to send
	sent uint64 // packets sent
}

// attach attaches an endpoint to an engine until the end of the test.
func attach(t testing.TB, e *Engine, ep *endpoint) *endpoint {
	t.Helper()
	ep.e = e
	var err error
	e.Do(func() { ep.num, err = e.Attach(ep) })
	testutil.Must(t, err)
	t.Cleanup(func() { e.Do(func() { e.Detach(ep.num) }) })
	return ep
}

// connect makes ep send its packets to another endpoint.
func (ep *endpoint) connect(local, remote netip.Addr, to uint32) *endpoint {
	ep.path, ep.to = wire.Path{Local: local, Remote: remote, MTU: 4096}, to
	return ep
}

// sendAll sends n packets, which wait at the peer.
func (ep *endpoint) sendAll(n int) {
	ep.send = n
	for ep.send > 0 {
		ep.Kick()
	}
}

func (ep *endpoint) Receive(_ *wire.Packet, h *packet.Header) {
	ep.received++
	ep.last = binary.BigEndian.Uint64(h.Payload)
	if ep.onReceive != nil {
		ep.onReceive(ep)
	}
}

func (ep *endpoint) Run() bool {
	ep.runs++
	if ep.onRun != nil {
		return ep.onRun(ep)
	}
	for share := 16; ep.send > 0; share-- {
		if share == 0 || !ep.packet() {
			return true
		}
	}
	return false
}

// packet sends one packet and reports false if the socket takes none.
func (ep *endpoint) packet() bool {
	b := ep.e.Conn().Alloc(&ep.path, packet.BTHSize+8)
	if b == nil {
		return false
	}
	h := packet.BTH{Opcode: packet.SendOnly, PKey: packet.PKeyDefault, QPN: ep.to}
	h.Put(b)
	ep.sent++
	binary.BigEndian.PutUint64(b[packet.BTHSize:], ep.sent)
	ep.send--
	return true
}

func (ep *endpoint) Expire() {
	ep.expired++
	if ep.onExpire != nil {
		ep.onExpire(ep)
	}
}

// packetTo returns a packet to a queue pair as Recv returns it.
func packetTo(qpn uint32, number uint64) *wire.Packet {
	b := make([]byte, packet.BTHSize+8)
	h := packet.BTH{Opcode: packet.SendOnly, PKey: packet.PKeyDefault, QPN: qpn}
	h.Put(b)
	binary.BigEndian.PutUint64(b[packet.BTHSize:], number)
	return &wire.Packet{
		Local: netip.AddrPortFrom(addrA, wire.Port), Remote: netip.AddrPortFrom(addrB, 1), Data: b,
	}
}

// held runs fn with the engine held and waits for the turn to end.
func held(e *Engine, fn func()) {
	e.Do(fn)
	e.Do(func() {})
}

// settle makes turns until the network has nothing left to deliver now.
func settle(mem *wiretest.Network, devices ...*Device) {
	for {
		for _, d := range devices {
			for _, e := range d.engines {
				e.Step()
			}
		}
		if after, ok := mem.Next(); !ok || after != 0 {
			return
		}
	}
}
