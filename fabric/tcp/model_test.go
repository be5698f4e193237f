package tcp

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The hosts of TestModel. Each has slots, which are CIDs with their own parts of the namespace.
const (
	modelHosts = 3
	modelSlots = 8
	slotSize   = 128 << 10
	// modelInCapsule does not exceed the reserve of the smallest pool.
	modelInCapsule = 48 << 10
)

// modelOp is a command of a modelHost.
type modelOp struct {
	opcode  nvme.Opcode
	off     int
	data    []byte // to be written, or read so far
	want    nvme.Status
	damage  bool // of one of the data digests
	started bool
}

// modelHost is a well-behaved host: it sends commands without waiting, answers R2Ts in order, and
// receives everything.
type modelHost struct {
	h      *manual
	c      *client
	peer   int
	out    []byte // not sent yet
	in     []byte // received, less than a PDU
	ops    [modelSlots]modelOp
	large  bool // only large commands, and as much of the stream at once as possible
	issued int
	done   int
	ended  bool
}

// bufferedConn is a connection from which a client reads earlier received bytes.
type bufferedConn struct {
	net.Conn
	bytes.Buffer
}

func (b *bufferedConn) Read(p []byte) (int, error)  { return b.Buffer.Read(p) }
func (b *bufferedConn) Write(p []byte) (int, error) { panic("not used") }

// TestModel has several hosts send random valid streams of all kinds of commands, cut anywhere,
// while memory is scarce and the device slow, and compares the answers with a model. Nothing may
// wait for a deadline, and in the end nothing is missing.
func TestModel(t *testing.T) {
	for seed := range uint64(testutil.Rounds(50, 200)) {
		testModel(t, seed)
		testutil.MustTrue(t, !t.Failed(), "seed %d", seed)
	}
}

func testModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	arena := []int{384 << 10, 512 << 10, 8 << 20}[rng.IntN(3)]
	h := newManual(t, options{
		zeroCopy: rng.IntN(2) == 0, hold: true, arena: arena,
		cfg: Config{InCapsuleSize: modelInCapsule, MaxH2CData: 4096 << rng.IntN(6)},
	})
	h.d.Optimistic = rng.IntN(2) == 0
	h.d.ZeroCopyWrites = rng.IntN(3) == 0
	model := bytes.Clone(h.d.Region.Bytes())
	hosts := make([]*modelHost, 1+rng.IntN(modelHosts))
	for i := range hosts {
		p := pdu.Params{
			HeaderDigest: rng.IntN(2) == 0, DataDigest: rng.IntN(2) == 0,
			HPDA: uint8(rng.IntN(2) * rng.IntN(32)),
		}
		hosts[i] = &modelHost{h: h, c: h.connect(p, modelSlots+1), peer: h.peer}
		hosts[i].c.P.MaxH2CData = uint32(h.t.cfg.MaxH2CData)
		hosts[i].c.Conn = &bufferedConn{}
		hosts[i].large = rng.IntN(3) == 0
		if rng.IntN(3) == 0 {
			_ = unix.SetsockoptInt(h.g.queues.At(i).fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<10)
		}
	}
	hangUp := rng.IntN(4) == 0
	const ops = 60
	for idle := 0; idle < 8; {
		all, progress := true, false
		for i, m := range hosts {
			if m.ended {
				continue
			}
			h.peer = m.peer
			for n := 1 + rng.IntN(2*modelSlots); m.issued < ops && n > 0; n-- {
				progress = m.issue(i, rng) || progress
			}
			progress = m.send(rng) || progress
			if rng.IntN(4) != 0 || idle > 4 { // sometimes the host reads slowly
				progress = m.receive(rng, model) || progress
			}
			all = all && m.done == ops
			if hangUp && rng.IntN(200) == 0 {
				m.end()
			}
		}
		if len(h.d.Held) > 0 && (rng.IntN(3) == 0 || idle > 4) {
			progress = true
			h.releaseSome(rng)
		}
		if rng.IntN(8) == 0 {
			h.loop.now += recent
		}
		if all {
			break
		}
		if idle++; progress {
			idle = 0
		}
	}
	for i, m := range hosts {
		h.peer = m.peer
		if !m.ended && m.done != ops {
			t.Errorf("host %d: %d of %d commands are done; %d bytes to send, memory %d, state %v",
				i, m.done, m.issued, len(m.out), h.g.cfg.Memory.Available(), h.g.stalled)
		}
	}
	part := modelSlots * slotSize
	for i, m := range hosts {
		if !m.ended && !bytes.Equal(h.d.Region.Bytes()[i*part:][:part], model[i*part:][:part]) {
			t.Errorf("host %d: the namespace differs from the model", i)
		}
		m.end()
	}
	h.d.Release()
	h.turn()
	testutil.Equal(t, h.arena.Available(), len(h.arena.Region().Bytes()),
		"bytes of the arena are free")
	testutil.True(t, h.g.cfg.Memory.Promised() == 0 && h.g.stalled == 0 && h.g.borrowed == 0 &&
		h.g.resumed.Empty(), "promised %d, stalled %d, borrowed %d", h.g.cfg.Memory.Promised(),
		h.g.stalled, h.g.borrowed)
	h.close()
}

// releaseSome completes some of the commands that the device has.
func (h *manual) releaseSome(rng *rand.Rand) {
	held := h.d.Held
	rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	n := rng.IntN(len(held) + 1)
	more := append(held[:0:0], held[n:]...)
	h.d.Held = held[:n]
	h.d.Release()
	h.d.Held = append(h.d.Held, more...)
	h.turn()
}

func (m *modelHost) end() {
	if !m.ended {
		_ = unix.Close(m.peer)
		m.ended = true
	}
	m.h.peer = -1
	m.h.turn()
}

// issue puts a command into the stream, if a slot is free.
func (m *modelHost) issue(host int, rng *rand.Rand) bool {
	slot := rng.IntN(modelSlots)
	o := &m.ops[slot]
	if o.started {
		return false
	}
	part := (host*modelSlots + slot) * slotSize
	inCapsule := rng.IntN(2) == 0
	most := slotSize
	if inCapsule {
		most = modelInCapsule
	}
	n := (1 + rng.IntN(most/blockSize>>rng.IntN(7))) * blockSize
	if m.large {
		n = most - rng.IntN(32)*blockSize
	}
	*o = modelOp{
		opcode: nvme.NVMWrite, off: part + rng.IntN((slotSize-n)/blockSize+1)*blockSize,
		started: true,
	}
	switch rng.IntN(10) {
	case 0:
		o.opcode, n = nvme.NVMFlush, 0
	case 1, 2:
		o.opcode = nvme.NVMRead
	}
	sqe := rw(o.opcode, uint16(slot), o.off, n, inCapsule && o.opcode == nvme.NVMWrite)
	if rng.IntN(2) == 0 {
		sqe.SetNSID(holdNSID)
	}
	switch {
	case n == 0:
		sqe = rw(o.opcode, uint16(slot), 0, 0, false)
	case o.opcode == nvme.NVMWrite:
		o.data = random(rng.IntN(1<<30), n)
		o.damage = m.c.P.DataDigest && !m.h.d.ZeroCopyWrites && rng.IntN(8) == 0
		if o.damage {
			o.want = nvme.TransientTransportError
		}
	}
	if rng.IntN(16) == 0 { // refused, with all its data
		sqe.SetOpcode(o.opcode | 0x80)
		o.want, o.damage = nvme.InvalidOpcode|nvme.DNR, false
		if !inCapsule {
			o.data = nil // no data is requested
		}
	}
	b := m.c.Capsule(&sqe, nil)
	if inCapsule && o.data != nil {
		b = m.c.Capsule(&sqe, o.data)
		if o.damage {
			b[len(b)-1-rng.IntN(pdu.DigestSize+n)] ^= 1
		}
	}
	m.out = append(m.out, b...)
	m.issued++
	return true
}

// send gives the socket a piece of the stream.
func (m *modelHost) send(rng *rand.Rand) bool {
	n := len(m.out)
	if !m.large {
		n = min(n, 1+rng.IntN(1<<rng.IntN(18)))
	}
	if n == 0 {
		return false
	}
	sent, e := sys.Send(m.peer, m.out[:n], 0)
	testutil.True(m.h.tb, e == 0 || e == unix.EAGAIN, "send: %v", e)
	m.out = m.out[sent:]
	m.h.turn()
	return sent > 0
}

// receive receives the answers of the target and checks them.
func (m *modelHost) receive(rng *rand.Rand, model []byte) bool {
	b := m.h.recv()
	m.in = append(m.in, b...)
	for len(m.in) >= pdu.HeaderSize && len(m.in) >= int((*pdu.Header)(m.in).PLEN()) {
		n := int((*pdu.Header)(m.in).PLEN())
		conn := m.c.Conn.(*bufferedConn)
		conn.Reset()
		conn.Buffer.Write(m.in[:n])
		m.in = m.in[n:]
		msg := testutil.Value(m.c.Receive())(m.h.tb)
		m.handle(msg, rng, model)
	}
	return len(b) > 0
}

func (m *modelHost) handle(msg hosttest.Message, rng *rand.Rand, model []byte) {
	tb := m.h.tb
	switch msg.Type {
	case pdu.TypeR2T:
		r := (*pdu.Data)(msg.Raw)
		o := &m.ops[r.CCCID()]
		testutil.MustTrue(tb, o.started && o.opcode == nvme.NVMWrite && r.DATAO() == 0 &&
			int(r.DATAL()) == len(o.data), "R2T %x", msg.Raw)
		for at := 0; at < len(o.data); {
			n := min(len(o.data)-at, int(m.c.P.MaxH2CData))
			if rng.IntN(2) == 0 {
				n = 1 + rng.IntN(n)
			}
			flags := pdu.Flags(0)
			if at+n == len(o.data) {
				flags = pdu.LastPDU
			}
			b := m.c.H2CData(flags, r.CCCID(), r.TTAG(), at, o.data[at:at+n])
			if at += n; o.damage && flags != 0 {
				b[len(b)-1] ^= 1
			}
			m.out = append(m.out, b...)
		}
	case pdu.TypeC2HData:
		d := (*pdu.Data)(msg.Raw)
		o := &m.ops[d.CCCID()]
		testutil.MustTrue(tb, o.started && o.opcode == nvme.NVMRead && int(d.DATAO()) == 0,
			"C2HData %x", msg.Raw)
		testutil.MustTrue(tb, bytes.Equal(msg.Data, model[o.off:o.off+len(msg.Data)]),
			"a read brought other data than the model has")
	case pdu.TypeCapsuleResp:
		cqe := (*pdu.CapsuleResp)(msg.Raw).CQE()
		o := &m.ops[cqe.CID()]
		testutil.MustTrue(tb, o.started && cqe.Status() == o.want, "command %d: %v, want %v",
			cqe.CID(), cqe.Status(), o.want)
		if o.opcode == nvme.NVMWrite && o.want.OK() {
			copy(model[o.off:], o.data)
		}
		*o = modelOp{}
		m.done++
	default:
		tb.Fatalf("got %v %x", msg.Type, msg.Raw)
	}
}
