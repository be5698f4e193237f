package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// client is a host that can send anything.
type client struct {
	tb testing.TB
	net.Conn
	p pdu.Params
}

// dial opens a connection without ICReq.
func (tg *target) dial(tb testing.TB) *client {
	tb.Helper()
	c := testutil.Value(net.Dial("tcp", tg.addr()))(tb)
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return &client{tb: tb, Conn: c, p: pdu.Params{InCapsule: 8192}}
}

// icReq sends an ICReq for p and reads the answer.
func (c *client) icReq(p pdu.Params) {
	c.tb.Helper()
	r := pdu.ICReq(&p, 1)
	c.send(r[:])
	m := c.recv()
	testutil.MustTrue(c.tb, m.t == pdu.TypeICResp, "got %v, want ICResp", m)
	resp := (*pdu.IC)(m.raw)
	// Linux refuses an alignment requested by the controller, and digests it did not request.
	testutil.MustTrue(c.tb, resp.Check().OK() && resp.HeaderDigest() == p.HeaderDigest &&
		resp.DataDigest() == p.DataDigest && resp.PDA() == 0, "ICResp %x", m.raw)
	c.p = p
	c.p.CPDA, c.p.MaxH2CData = resp.PDA(), resp.MaxH2CData()
	c.p.InCapsule = 8192
}

// served is serve with a connection.
func served(tb testing.TB, o options, p pdu.Params, depth int, cattr nvme.CATTR,
) (*target, *client) {
	tb.Helper()
	tg := serve(tb, o)
	return tg, tg.connect(tb, p, depth, cattr)
}

// joined is newManual with a connection.
func joined(tb testing.TB, o options, p pdu.Params, depth int) (*manual, *client) {
	tb.Helper()
	h := newManual(tb, o)
	return h, h.connect(p, depth)
}

// connect makes an I/O queue of the given size ready.
func (tg *target) connect(tb testing.TB, p pdu.Params, depth int, cattr nvme.CATTR) *client {
	tb.Helper()
	c := tg.dial(tb)
	c.icReq(p)
	c.send(c.connectPDU(1, depth, cattr))
	c.status(0, nvme.Success)
	return c
}

func (c *client) connectPDU(qid uint16, depth int, cattr nvme.CATTR) []byte {
	var sqe nvme.SQE
	sqe.Connect().Set(qid, uint16(depth-1), cattr, 0)
	sqe.SetFlags(1 << 6)
	sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	return c.capsule(&sqe, make([]byte, nvme.ConnectDataSize))
}

// rw makes a read or write of n bytes at off. Its SGL is in-capsule if ic is set, otherwise
// transport data.
func rw(op nvme.Opcode, cid uint16, off, n int, ic bool) (sqe nvme.SQE) {
	sqe.SetOpcode(op)
	sqe.SetFlags(1 << 6)
	sqe.SetCID(cid)
	sqe.SetNSID(1)
	sqe.SetCDW64(10, uint64(off/blockSize))
	sqe.SetCDW(12, uint32(n/blockSize-1))
	if ic {
		sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, uint32(n))
	} else {
		sqe.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, uint32(n))
	}
	return sqe
}

// request is the capsule of a command without data in it.
func (c *client) request(op nvme.Opcode, cid uint16, off, n int) []byte {
	sqe := rw(op, cid, off, n, false)
	return c.capsule(&sqe, nil)
}

// held is a request that the device holds.
func (c *client) held(op nvme.Opcode, cid uint16, off, n int) []byte {
	sqe := rw(op, cid, off, n, false)
	sqe.SetNSID(holdNSID)
	return c.capsule(&sqe, nil)
}

// inCapsule is the capsule of a write with its data, which is random(seed, n).
func (c *client) inCapsule(cid uint16, off, n, seed int) []byte {
	sqe := rw(nvme.NVMWrite, cid, off, n, true)
	return c.capsule(&sqe, random(seed, n))
}

// capsule builds a CapsuleCmd with in-capsule data.
func (c *client) capsule(sqe *nvme.SQE, data []byte) []byte {
	var h pdu.CapsuleCmd
	pdo := h.Set(&c.p, uint32(len(data)))
	*h.SQE() = *sqe
	return c.assemble(h[:], pdo, data)
}

// h2cData builds a H2CData.
func (c *client) h2cData(flags pdu.Flags, cid, ttag uint16, off int, data []byte) []byte {
	var h pdu.Data
	pdo := h.SetH2C(&c.p, flags, cid, ttag, uint32(off), uint32(len(data)))
	return c.assemble(h[:], pdo, data)
}

func (c *client) assemble(h []byte, pdo int, data []byte) []byte {
	b := append([]byte(nil), h...)
	if c.p.HeaderDigest {
		b = binary.LittleEndian.AppendUint32(b, pdu.CRC(0, h))
	}
	for len(b) < pdo {
		b = append(b, 0)
	}
	b = append(b, data...)
	if c.p.DataDigest && len(data) > 0 {
		b = binary.LittleEndian.AppendUint32(b, pdu.CRC(0, data))
	}
	return b
}

// fixHeaderDigest recomputes the header digest of a PDU that a test has damaged.
func (c *client) fixHeaderDigest(b []byte, hlen int) []byte {
	if c.p.HeaderDigest && len(b) >= hlen+4 {
		pdu.PutHeaderDigest(b, hlen)
	}
	return b
}

func (c *client) send(b ...[]byte) {
	c.tb.Helper()
	testutil.MustEqual(c.tb, testutil.Err(c.Write(bytes.Join(b, nil))), nil, "send")
}

// message is one PDU from the target, checked as a strict host would.
type message struct {
	t    pdu.Type
	raw  []byte // header
	data []byte
}

var errClosed = errors.New("closed")

// read reads a PDU; errClosed at an orderly or abrupt end of the stream.
func (c *client) read() (m message, err error) {
	h := make([]byte, pdu.HeaderSize, 256)
	if _, err := io.ReadFull(c, h); err != nil {
		return m, errors.Join(errClosed, err)
	}
	ch := (*pdu.Header)(h)
	m.t = ch.Type()
	if f := c.p.CheckFromController(ch, 1<<30); !f.OK() {
		return m, f
	}
	rest := make([]byte, ch.PLEN()-pdu.HeaderSize)
	if _, err := io.ReadFull(c, rest); err != nil {
		return m, errors.Join(errClosed, err)
	}
	all := append(h, rest...)
	hlen := ch.HLEN()
	m.raw = all[:hlen]
	digests := m.t == pdu.TypeCapsuleResp || m.t == pdu.TypeC2HData || m.t == pdu.TypeR2T
	if digests && c.p.HeaderDigest && !pdu.HeaderDigestOK(all, hlen) {
		return m, errors.New("bad header digest")
	}
	switch m.t {
	case pdu.TypeC2HData:
		d := (*pdu.Data)(m.raw)
		if f := d.Check(&c.p); !f.OK() {
			return m, f
		}
		m.data = all[ch.PDO():][:d.DATAL()]
		if c.p.DataDigest && pdu.GetCRC(all[len(all)-4:]) != pdu.CRC(0, m.data) {
			return m, errors.New("bad data digest")
		}
	case pdu.TypeC2HTermReq:
		m.data = all[pdu.TermReqSize:]
	}
	return m, nil
}

func (c *client) recv() message {
	c.tb.Helper()
	m, err := c.read()
	testutil.MustTrue(c.tb, err == nil, "receive: %v (type %v)", err, m.t)
	return m
}

// status reads a CapsuleResp and compares its status, without More and CRD.
func (c *client) status(cid uint16, want nvme.Status) {
	c.tb.Helper()
	m := c.recv()
	testutil.MustTrue(c.tb, m.t == pdu.TypeCapsuleResp, "got %v %x, want CapsuleResp", m.t, m.raw)
	cqe := (*pdu.CapsuleResp)(m.raw).CQE()
	testutil.MustTrue(c.tb, cqe.CID() == cid && cqe.Status() == want, "CID %d: %v, want CID %d: %v",
		cqe.CID(), cqe.Status(), cid, want)
}

// term reads PDUs until a C2HTermReq, compares it, and expects the end of the stream.
func (c *client) term(want pdu.Fault) {
	c.tb.Helper()
	for {
		m := c.recv()
		if m.t != pdu.TypeC2HTermReq {
			continue
		}
		testutil.MustEqual(c.tb, (*pdu.TermReq)(m.raw).Fault(), want, "C2HTermReq")
		break
	}
	c.end()
}

// end expects the end of the stream and nothing before it.
func (c *client) end() {
	c.tb.Helper()
	if m, err := c.read(); !errors.Is(err, errClosed) {
		c.tb.Fatalf("got %v %x, %v; want the end", m.t, m.raw, err)
	}
	_ = c.Close()
}

// readBlocks reads n bytes at off from the namespace.
func (c *client) readBlocks(cid uint16, off, n int) []byte {
	c.tb.Helper()
	c.send(c.request(nvme.NVMRead, cid, off, n))
	var data []byte
	for {
		m := c.recv()
		switch m.t {
		case pdu.TypeC2HData:
			d := (*pdu.Data)(m.raw)
			testutil.MustTrue(c.tb, d.CCCID() == cid && int(d.DATAO()) == len(data), "C2HData %x",
				m.raw)
			data = append(data, m.data...)
			if f := d.Header().Flags(); f&pdu.Success != 0 {
				return data
			}
		case pdu.TypeCapsuleResp:
			cqe := (*pdu.CapsuleResp)(m.raw).CQE()
			testutil.MustTrue(c.tb, cqe.CID() == cid && cqe.Status().OK(), "read: CID %d, %v",
				cqe.CID(), cqe.Status())
			return data
		default:
			c.tb.Fatalf("got %v %x", m.t, m.raw)
		}
	}
}

// r2t reads an R2T for a command.
func (c *client) r2t(cid uint16, n int) (ttag uint16) {
	c.tb.Helper()
	m := c.recv()
	testutil.MustTrue(c.tb, m.t == pdu.TypeR2T, "got %v %x, want R2T", m.t, m.raw)
	r := (*pdu.Data)(m.raw)
	testutil.MustTrue(c.tb, r.CCCID() == cid && r.DATAO() == 0 && int(r.DATAL()) == n, "R2T %x",
		m.raw)
	return r.TTAG()
}

// random makes n bytes that depend on seed.
func random(seed, n int) []byte {
	b, from := make([]byte, n), [32]byte{}
	binary.LittleEndian.PutUint64(from[:], uint64(seed))
	_, _ = rand.NewChaCha8(from).Read(b)
	return b
}
