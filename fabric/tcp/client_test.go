package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// client is a host that can send anything.
type client struct {
	tb testing.TB
	hosttest.Wire
}

// dial opens a connection without ICReq.
func (tg *target) dial(tb testing.TB) *client {
	tb.Helper()
	c := testutil.Value(net.Dial("tcp", tg.addr()))(tb)
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return &client{tb, hosttest.Wire{Conn: c, P: pdu.Params{InCapsule: 8192}}}
}

// icReq sends an ICReq for p and reads the answer.
func (c *client) icReq(p pdu.Params) {
	c.tb.Helper()
	testutil.Must(c.tb, c.Greet(p))
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
	return c.Capsule(&sqe, make([]byte, nvme.ConnectDataSize))
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
	return c.Capsule(&sqe, nil)
}

// held is a request that the device holds.
func (c *client) held(op nvme.Opcode, cid uint16, off, n int) []byte {
	sqe := rw(op, cid, off, n, false)
	sqe.SetNSID(holdNSID)
	return c.Capsule(&sqe, nil)
}

// inCapsule is the capsule of a write with its data, which is random(seed, n).
func (c *client) inCapsule(cid uint16, off, n, seed int) []byte {
	sqe := rw(nvme.NVMWrite, cid, off, n, true)
	return c.Capsule(&sqe, random(seed, n))
}

// fixHeaderDigest recomputes the header digest of a PDU that a test has damaged.
func (c *client) fixHeaderDigest(b []byte, hlen int) []byte {
	if c.P.HeaderDigest && len(b) >= hlen+4 {
		pdu.PutHeaderDigest(b, hlen)
	}
	return b
}

func (c *client) send(b ...[]byte) {
	c.tb.Helper()
	testutil.MustEqual(c.tb, testutil.Err(c.Write(bytes.Join(b, nil))), nil, "send")
}

func (c *client) recv() hosttest.Message {
	c.tb.Helper()
	m, err := c.Receive()
	testutil.MustTrue(c.tb, err == nil, "receive: %v (type %v)", err, m.Type)
	return m
}

// status reads a CapsuleResp and compares its status, without More and CRD.
func (c *client) status(cid uint16, want nvme.Status) {
	c.tb.Helper()
	m := c.recv()
	testutil.MustTrue(c.tb, m.Type == pdu.TypeCapsuleResp, "got %v %x, want CapsuleResp", m.Type,
		m.Raw)
	cqe := (*pdu.CapsuleResp)(m.Raw).CQE()
	testutil.MustTrue(c.tb, cqe.CID() == cid && cqe.Status() == want, "CID %d: %v, want CID %d: %v",
		cqe.CID(), cqe.Status(), cid, want)
}

// term reads PDUs until a C2HTermReq, compares it, and expects the end of the stream.
func (c *client) term(want pdu.Fault) {
	c.tb.Helper()
	for {
		m := c.recv()
		if m.Type != pdu.TypeC2HTermReq {
			continue
		}
		testutil.MustEqual(c.tb, (*pdu.TermReq)(m.Raw).Fault(), want, "C2HTermReq")
		break
	}
	c.end()
}

// end expects the end of the stream and nothing before it.
func (c *client) end() {
	c.tb.Helper()
	if m, err := c.Receive(); !errors.Is(err, hosttest.ErrEnd) {
		c.tb.Fatalf("got %v %x, %v; want the end", m.Type, m.Raw, err)
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
		switch m.Type {
		case pdu.TypeC2HData:
			d := (*pdu.Data)(m.Raw)
			testutil.MustTrue(c.tb, d.CCCID() == cid && int(d.DATAO()) == len(data), "C2HData %x",
				m.Raw)
			data = append(data, m.Data...)
			if f := d.Header().Flags(); f&pdu.Success != 0 {
				return data
			}
		case pdu.TypeCapsuleResp:
			cqe := (*pdu.CapsuleResp)(m.Raw).CQE()
			testutil.MustTrue(c.tb, cqe.CID() == cid && cqe.Status().OK(), "read: CID %d, %v",
				cqe.CID(), cqe.Status())
			return data
		default:
			c.tb.Fatalf("got %v %x", m.Type, m.Raw)
		}
	}
}

// r2t reads an R2T for a command.
func (c *client) r2t(cid uint16, n int) (ttag uint16) {
	c.tb.Helper()
	m := c.recv()
	testutil.MustTrue(c.tb, m.Type == pdu.TypeR2T, "got %v %x, want R2T", m.Type, m.Raw)
	r := (*pdu.Data)(m.Raw)
	testutil.MustTrue(c.tb, r.CCCID() == cid && r.DATAO() == 0 && int(r.DATAL()) == n, "R2T %x",
		m.Raw)
	return r.TTAG()
}

// random makes n bytes that depend on seed.
func random(seed, n int) []byte {
	b, from := make([]byte, n), [32]byte{}
	binary.LittleEndian.PutUint64(from[:], uint64(seed))
	_, _ = rand.NewChaCha8(from).Read(b)
	return b
}
