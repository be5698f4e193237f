package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// set returns b with one byte changed.
func set(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}

// set32 returns b with four bytes changed.
func set32(b []byte, at int, v uint32) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], v)
	return b
}

func invalid(at uint32) pdu.Fault { return pdu.Fault{FES: pdu.FESInvalidHeader, FEI: at} }

var (
	sequence   = pdu.Fault{FES: pdu.FESSequence}
	outOfRange = pdu.Fault{FES: pdu.FESOutOfRange}
	limit      = pdu.Fault{FES: pdu.FESLimit, FEI: pdu.OffPLEN}
)

// Before and instead of a good ICReq.
func TestHostileICReq(t *testing.T) {
	tg := serve(t, options{})
	var good pdu.ICReq
	good.Set(&pdu.Params{HeaderDigest: true}, 1)
	c := &client{}
	sqe := rw(nvme.NVMRead, 0, 0, 512, false)
	tests := []struct {
		name string
		send []byte
		want pdu.Fault
	}{
		{"random bytes", random(77, 128), invalid(pdu.OffType)},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: target\r\n\r\n"), invalid(pdu.OffType)},
		{"TLS ClientHello", append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, random(1, 500)...), invalid(pdu.OffType)},
		{"CapsuleCmd first", c.capsule(&sqe, nil), sequence},
		{"H2CData first", c.h2cData(0, 0, 0, 0, random(0, 512)), sequence},
		{"TermReq first", pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, nil), sequence},
		{"C2HData first", set(c.h2cData(0, 0, 0, 0, random(0, 512)), 0, byte(pdu.TypeC2HData)), invalid(pdu.OffType)},
		{"PLEN 127", set32(good[:], 4, 127), invalid(pdu.OffPLEN)},
		{"PLEN 129", set32(good[:], 4, 129), invalid(pdu.OffPLEN)},
		{"PLEN FFFFFFFFh", set32(good[:], 4, 0xFFFFFFFF), invalid(pdu.OffPLEN)},
		{"HLEN 0", set(good[:], 2, 0), invalid(pdu.OffHLEN)},
		{"HLEN 72", set(good[:], 2, 72), invalid(pdu.OffHLEN)},
		{"PFV 1", set(good[:], 8, 1), invalid(pdu.OffPFV)},
		{"PFV 100h", set(good[:], 9, 1), invalid(pdu.OffPFV)},
		{"HPDA 32", set(good[:], 10, 32), invalid(pdu.OffHPDA)},
		{"HPDA 255", set(good[:], 10, 255), invalid(pdu.OffHPDA)},
		{"a second ICReq, with digests", append(bytes.Clone(good[:]), append(bytes.Clone(good[:]), 1, 2, 3, 4)...), sequence},
		{"a second ICReq", append(set(good[:], 11, 0), good[:]...), sequence},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tg.dial(t)
			c.send(tt.send)
			c.term(tt.want)
		})
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
	if n := tg.d.executed.Load(); n != 0 {
		t.Errorf("%d commands executed", n)
	}
}

// Every unknown or wrong type on a live connection.
func TestHostileTypes(t *testing.T) {
	tg := serve(t, options{})
	for ty := range 256 {
		switch pdu.Type(ty) {
		case pdu.TypeICReq, pdu.TypeH2CTermReq, pdu.TypeCapsuleCmd, pdu.TypeH2CData:
			continue
		}
		c := tg.connect(t, pdu.Params{}, 4, 0)
		c.send([]byte{byte(ty), 0, 24, 0, 24, 0, 0, 0})
		c.term(invalid(pdu.OffType))
	}
}

// PDUs that are wrong on a live connection; nothing of them may be executed.
func TestHostilePDU(t *testing.T) {
	tg := serve(t, options{})
	type build func(c *client) []byte
	read := func(c *client) []byte {
		sqe := rw(nvme.NVMRead, 1, 0, 512, false)
		return c.capsule(&sqe, nil)
	}
	inline := func(n int) build {
		return func(c *client) []byte {
			sqe := rw(nvme.NVMWrite, 1, 0, n, true)
			return c.capsule(&sqe, random(0, n))
		}
	}
	change := func(fn build, at int, v byte) build {
		return func(c *client) []byte { return c.fixHeaderDigest(set(fn(c), at, v), int(fn(c)[2])) }
	}
	change32 := func(fn build, at int, v uint32) build {
		return func(c *client) []byte { return c.fixHeaderDigest(set32(fn(c), at, v), int(fn(c)[2])) }
	}
	tests := []struct {
		name        string
		build       build
		plain, both pdu.Fault // without and with digests
	}{
		{"CapsuleCmd HLEN", change(read, 2, 24), invalid(pdu.OffHLEN), invalid(pdu.OffHLEN)},
		{"CapsuleCmd PLEN < HLEN", change32(read, 4, 71), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"CapsuleCmd PLEN 0", change32(read, 4, 0), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"CapsuleCmd PLEN HLEN+3", change32(read, 4, 75), invalid(pdu.OffPDO), invalid(pdu.OffPLEN)},
		{"CapsuleCmd PLEN FFFFFFFFh", change32(inline(512), 4, 0xFFFFFFFF), limit, limit},
		{"CapsuleCmd PDO 0 with data", change(inline(512), 3, 0), invalid(pdu.OffPDO), invalid(pdu.OffPDO)},
		{"CapsuleCmd PDO < HLEN", change(inline(512), 3, 68), invalid(pdu.OffPDO), invalid(pdu.OffPDO)},
		{"CapsuleCmd PDO odd", change(inline(512), 3, 78), invalid(pdu.OffPDO), invalid(pdu.OffPDO)},
		{"CapsuleCmd PDO without data", change(read, 3, 76), invalid(pdu.OffPDO), invalid(pdu.OffPDO)},
		{"CapsuleCmd PDO beyond", func(c *client) []byte {
			return c.fixHeaderDigest(set(set32(inline(512)(c), 4, 100), 3, 128), 72)
		}, invalid(pdu.OffPDO), invalid(pdu.OffPDO)},
		{"CapsuleCmd HDGSTF wrong", func(c *client) []byte { b := read(c); b[1] ^= 1; return b }, invalid(pdu.OffFlags), invalid(pdu.OffFlags)},
		{"CapsuleCmd DDGSTF wrong", func(c *client) []byte { b := inline(512)(c); b[1] ^= 2; return b }, invalid(pdu.OffFlags), invalid(pdu.OffFlags)},
		{"capsule longer than its SGL", change32(inline(1024), 8+24+8, 512), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"capsule shorter than its SGL", change32(inline(512), 8+24+8, 1024), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"SGL says data, capsule has none", change(read, 8+24+15, 1), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"capsule has data, SGL says transport", change(inline(512), 8+24+15, 0x5A), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"too much data in an I/O capsule", inline(128<<10 + 512), limit, limit},
		{
			"in-capsule offset", change32(inline(512), 8+24, 16),
			pdu.Fault{FES: pdu.FESUnsupported, FEI: pdu.OffSGL1},
			pdu.Fault{FES: pdu.FESUnsupported, FEI: pdu.OffSGL1},
		},
		{"H2CData without R2T", func(c *client) []byte { return c.h2cData(pdu.LastPDU, 1, 1, 0, random(0, 512)) }, sequence, sequence},
		{"H2CData TTAG 0", func(c *client) []byte { return c.h2cData(pdu.LastPDU, 0, 0, 0, random(0, 512)) }, sequence, sequence},
		{"H2CData TTAG FFFFh", func(c *client) []byte { return c.h2cData(pdu.LastPDU, 0, 0xFFFF, 0, random(0, 512)) }, sequence, sequence},
		{"TermReq PLEN 153", func(c *client) []byte {
			return set32(pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, random(0, 128)), 4, 153)
		}, invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"TermReq HLEN", func(c *client) []byte {
			return set(pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, nil), 2, 128)
		}, invalid(pdu.OffHLEN), invalid(pdu.OffHLEN)},
		{"ICReq", func(c *client) []byte { var r pdu.ICReq; r.Set(&c.p, 1); return r[:] }, sequence, sequence},
	}
	before := tg.d.executed.Load()
	for _, tt := range tests {
		for _, digests := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,digests=%v", tt.name, digests), func(t *testing.T) {
				c := tg.connect(t, pdu.Params{HeaderDigest: digests, DataDigest: digests}, 4, 0)
				before++
				want := tt.plain
				if digests {
					want = tt.both
				}
				c.send(tt.build(c))
				c.term(want)
			})
		}
	}
	if n := tg.d.executed.Load(); n != before {
		t.Errorf("%d commands executed", n-before)
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
}

func TestHeaderDigestWrong(t *testing.T) {
	tg := serve(t, options{})
	c := tg.connect(t, pdu.Params{HeaderDigest: true}, 4, 0)
	before := tg.d.executed.Load()
	sqe := rw(nvme.NVMWrite, 1, 0, 512, true)
	b := c.capsule(&sqe, random(0, 512))
	binary.LittleEndian.PutUint32(b[72:], 0xDEADBEEF)
	c.send(b)
	c.term(pdu.Fault{FES: pdu.FESHeaderDigest, FEI: 0xDEADBEEF})
	if tg.d.executed.Load() != before {
		t.Error("the command was executed")
	}
}

// A wrong data digest costs the command, with nothing written, and neither the connection nor the next command.
func TestDataDigestWrong(t *testing.T) {
	tg := serve(t, options{})
	c := tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
	old := c.readBlocks(1, 0, 8192)

	sqe := rw(nvme.NVMWrite, 2, 0, 4096, true)
	b := c.capsule(&sqe, random(5, 4096))
	b[len(b)-1] ^= 0x80
	c.send(b)
	c.status(2, nvme.TransientTransportError)

	sqe.SetOpcode(0x55) // and what is refused anyway
	b = c.capsule(&sqe, random(5, 4096))
	b[len(b)-1] ^= 0x80
	c.send(b)
	m := c.recv()
	if cqe := (*pdu.CapsuleResp)(m.raw).CQE(); cqe.Status().OK() || cqe.CID() != 2 {
		t.Errorf("invalid opcode: %v", cqe.Status())
	}

	sqe = rw(nvme.NVMWrite, 3, 0, 8192, false)
	c.send(c.capsule(&sqe, nil))
	ttag := c.r2t(3, 8192)
	first := c.h2cData(0, 3, ttag, 0, random(6, 4096))
	first[100] ^= 1
	c.send(first, c.h2cData(pdu.LastPDU, 3, ttag, 4096, random(7, 4096)))
	c.status(3, nvme.TransientTransportError)

	if got := c.readBlocks(4, 0, 8192); !bytes.Equal(got, old) {
		t.Error("data with a wrong digest was written")
	}
	if n := tg.d.written.Load(); n != 0 {
		t.Errorf("%d writes executed", n)
	}
	sqe = rw(nvme.NVMWrite, 5, 0, 512, true)
	c.send(c.capsule(&sqe, random(1, 512)))
	c.status(5, nvme.Success)
}

// H2CData that does not fit the R2T it names.
func TestHostileH2CData(t *testing.T) {
	tg := serve(t, options{cfg: Config{MaxH2CData: 8192}})
	const n = 16384
	data := func(m int) []byte { return random(m, m) }
	type args struct {
		c    *client
		ttag uint16
	}
	tests := []struct {
		name  string
		build func(a args) []byte
		want  pdu.Fault
	}{
		{"other CCCID", func(a args) []byte { return a.c.h2cData(0, 2, a.ttag, 0, data(512)) }, sequence},
		{"TTAG of another round", func(a args) []byte { return a.c.h2cData(0, 1, a.ttag+1<<ttagBits, 0, data(512)) }, sequence},
		{"TTAG of a free request", func(a args) []byte { return a.c.h2cData(0, 1, a.ttag^1, 0, data(512)) }, sequence},
		{"TTAG beyond the queue", func(a args) []byte { return a.c.h2cData(0, 1, a.ttag|1<<9, 0, data(512)) }, sequence},
		{"gap", func(a args) []byte { return a.c.h2cData(0, 1, a.ttag, 4, data(512)) }, outOfRange},
		{"beyond the end", func(a args) []byte { return a.c.h2cData(0, 1, a.ttag, n, data(512)) }, outOfRange},
		{"overlap", func(a args) []byte {
			return append(a.c.h2cData(0, 1, a.ttag, 0, data(512)), a.c.h2cData(0, 1, a.ttag, 256, data(512))...)
		}, outOfRange},
		{"too long in all", func(a args) []byte {
			return append(append(a.c.h2cData(0, 1, a.ttag, 0, data(8192)), a.c.h2cData(0, 1, a.ttag, 8192, data(8188))...),
				a.c.h2cData(0, 1, a.ttag, 8192+8188, data(8))...)
		}, outOfRange},
		{"offset and length wrap", func(a args) []byte {
			return set32(append(a.c.h2cData(0, 1, a.ttag, 0, data(512)), a.c.h2cData(0, 1, a.ttag, 512, data(512))...),
				24+512+16, 0xFFFFFFFF-512+1)
		}, outOfRange},
		{"over MAXH2CDATA", func(a args) []byte { return a.c.h2cData(0, 1, a.ttag, 0, data(8196)) }, limit},
		{"DATAL 0", func(a args) []byte { return set32(a.c.h2cData(0, 1, a.ttag, 0, data(512)), 16, 0) }, invalid(pdu.OffDATAL)},
		{"DATAL below PLEN", func(a args) []byte { return set32(a.c.h2cData(0, 1, a.ttag, 0, data(512)), 16, 508) }, invalid(pdu.OffDATAL)},
		{"DATAL above PLEN", func(a args) []byte { return set32(a.c.h2cData(0, 1, a.ttag, 0, data(512)), 16, 516) }, invalid(pdu.OffDATAL)},
		{"no data", func(a args) []byte { return set32(a.c.h2cData(0, 1, a.ttag, 0, data(512)), 4, 24) }, invalid(pdu.OffPLEN)},
		{"LAST_PDU early", func(a args) []byte { return a.c.h2cData(pdu.LastPDU, 1, a.ttag, 0, data(512)) }, invalid(pdu.OffFlags)},
		{"HLEN", func(a args) []byte { return set(a.c.h2cData(0, 1, a.ttag, 0, data(512)), 2, 28) }, invalid(pdu.OffHLEN)},
		{"PDO", func(a args) []byte { return set(a.c.h2cData(0, 1, a.ttag, 0, data(512)), 3, 26) }, invalid(pdu.OffPDO)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tg.connect(t, pdu.Params{}, 4, 0)
			sqe := rw(nvme.NVMWrite, 1, 0, n, false)
			c.send(c.capsule(&sqe, nil))
			c.send(tt.build(args{c, c.r2t(1, n)}))
			c.send(random(3, 2000)) // none of this is parsed
			c.term(tt.want)
		})
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
	if w := tg.d.written.Load(); w != 0 {
		t.Errorf("%d writes executed", w)
	}
	if free := tg.free(); free != 16<<20 {
		t.Errorf("%d bytes of the arena are free", free)
	}
}

func (tg *target) free() (n int) {
	tg.do(func() { n = tg.arena.Available() })
	return n
}

// After a write has completed its transfer tag is worth nothing; a missing LAST_PDU is forgiven.
func TestTransferTagOfThePast(t *testing.T) {
	tg := serve(t, options{})
	c := tg.connect(t, pdu.Params{}, 4, 0)
	sqe := rw(nvme.NVMWrite, 1, 0, 512, false)
	c.send(c.capsule(&sqe, nil))
	ttag := c.r2t(1, 512)
	c.send(c.h2cData(0, 1, ttag, 0, random(0, 512)))
	c.status(1, nvme.Success)
	c.send(c.h2cData(pdu.LastPDU, 1, ttag, 0, random(0, 512)))
	c.term(sequence)
}

// H2CData for a read, and for a command with in-capsule data, that is in the handler's hands.
func TestH2CDataForOtherCommands(t *testing.T) {
	tg := serve(t, options{hold: true})
	for _, op := range []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite} {
		c := tg.connect(t, pdu.Params{}, 4, 0)
		sqe := rw(op, 1, 0, 512, op == nvme.NVMWrite)
		sqe.SetNSID(holdNSID)
		if op == nvme.NVMWrite {
			c.send(c.capsule(&sqe, random(0, 512)))
		} else {
			c.send(c.capsule(&sqe, nil))
		}
		c.send(c.h2cData(pdu.LastPDU, 1, 1<<ttagBits, 0, random(0, 512)))
		c.term(sequence)
		tg.do(tg.d.release)
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
}

// Fabrics commands use SGLs whatever their PSDT says (Base section 4.1.2).
func TestFabricsPSDT(t *testing.T) {
	tg := serve(t, options{})
	for psdt := range byte(3) {
		c := tg.dial(t)
		c.icReq(pdu.Params{})
		connect := c.connectPDU(1, 4, 0)
		connect[8+1] = psdt << 6
		c.send(connect)
		c.status(0, nvme.Success)
	}
}

// Statuses that cost the command only.
func TestRefusedSGL(t *testing.T) {
	tg := serve(t, options{})
	c := tg.connect(t, pdu.Params{}, 4, 0)
	sgl := func(t nvme.SGLType, sub uint8, n uint32) nvme.SQE {
		s := rw(nvme.NVMRead, 1, 0, 512, false)
		s.SGL1().SetData(t, sub, 0, n)
		return s
	}
	prp := rw(nvme.NVMRead, 1, 0, 512, false)
	prp.SetFlags(0)
	for _, tt := range []struct {
		name string
		sqe  nvme.SQE
		want nvme.Status
	}{
		{"PRP", prp, nvme.InvalidField | nvme.DNR},
		{"data block, address", sgl(nvme.SGLDataBlock, nvme.SGLSubtypeAddress, 512), nvme.SGLTypeInvalid | nvme.DNR},
		{"keyed", sgl(nvme.SGLKeyedDataBlock, 0, 512), nvme.SGLTypeInvalid | nvme.DNR},
		{"segment", sgl(nvme.SGLSegment, 0, 512), nvme.SGLTypeInvalid | nvme.DNR},
		{"last segment", sgl(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, 16), nvme.SGLTypeInvalid | nvme.DNR},
		{"bit bucket", sgl(nvme.SGLBitBucket, 0, 512), nvme.SGLTypeInvalid | nvme.DNR},
		{"transport block, wrong subtype", sgl(nvme.SGLTransportDataBlock, 0, 512), nvme.SGLTypeInvalid | nvme.DNR},
		{"no length", sgl(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0), nvme.DataSGLLengthInvalid | nvme.DNR},
		{"4 GiB", sgl(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0xFFFFFFFF), nvme.DataSGLLengthInvalid | nvme.DNR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.tb = t
			c.send(c.capsule(&tt.sqe, nil))
			c.status(1, tt.want)
		})
	}
	c.tb = t
	s := rw(nvme.NVMRead, 2, 0, 512, true) // a read with data in its capsule
	c.send(c.capsule(&s, random(0, 512)))
	c.status(2, nvme.InvalidField|nvme.DNR)
	s = rw(nvme.NVMWrite, 3, 0, 512, true) // the data of a refused write is not taken for a PDU
	s.SetCDW64(10, 1<<40)
	c.send(c.capsule(&s, random(0, 512)))
	c.status(3, nvme.LBAOutOfRange|nvme.DNR)
	s = rw(nvme.NVMWrite, 4, 0, 512, true)
	s.SetFlags(0)
	c.send(c.capsule(&s, random(0, 512)))
	c.status(4, nvme.InvalidField|nvme.DNR)
	c.readBlocks(5, 0, 512)
}

// The admin queue takes 8192 bytes in the capsule, whatever I/O queues may; more is too much.
func TestInCapsuleOfAdmin(t *testing.T) {
	tg := serve(t, options{cfg: Config{InCapsuleSize: 4096}})
	connect := func(qid uint16) *client {
		c := tg.dial(t)
		c.icReq(pdu.Params{})
		c.send(c.connectPDU(qid, 4, 0))
		c.status(0, nvme.Success)
		return c
	}
	sqe := rw(nvme.NVMWrite, 1, 0, 8192, true)
	c := connect(0)
	c.send(c.capsule(&sqe, random(0, 8192)))
	c.status(1, nvme.Success)
	big := rw(nvme.NVMWrite, 1, 0, 8704, true)
	c.p.InCapsule = 1 << 20
	c.send(c.capsule(&big, random(0, 8704)))
	c.term(limit)
	c = connect(1)
	c.send(c.capsule(&sqe, random(0, 8192)))
	c.term(limit)
}

// More commands than the queue has entries.
func TestQueueOverrun(t *testing.T) {
	tg := serve(t, options{hold: true})
	c := tg.connect(t, pdu.Params{}, 4, 0)
	for i := range 5 {
		sqe := rw(nvme.NVMRead, uint16(i), 0, 512, false)
		sqe.SetNSID(holdNSID)
		c.send(c.capsule(&sqe, nil))
	}
	c.term(sequence)
	tg.do(tg.d.release)
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
}

// Two commands with the same identifier get one response each.
func TestDuplicateCID(t *testing.T) {
	tg := serve(t, options{})
	c := tg.connect(t, pdu.Params{}, 8, 0)
	a, b := rw(nvme.NVMRead, 1, 0, 512, false), rw(nvme.NVMWrite, 1, 0, 512, false)
	c.send(c.capsule(&a, nil), c.capsule(&b, nil), c.capsule(&b, nil))
	var tags []uint16
	responses := 0
	for len(tags) < 2 || responses < 1 {
		switch m := c.recv(); m.t {
		case pdu.TypeR2T:
			tags = append(tags, (*pdu.R2T)(m.raw).TTAG())
		case pdu.TypeCapsuleResp:
			responses++
		}
	}
	c.send(c.h2cData(pdu.LastPDU, 1, tags[1], 0, random(0, 512)), c.h2cData(pdu.LastPDU, 1, tags[0], 0, random(0, 512)))
	c.status(1, nvme.Success)
	c.status(1, nvme.Success)
	if responses != 1 {
		t.Errorf("%d responses to the read", responses)
	}
}

// A TermReq of the host ends the connection without an answer.
func TestTermReqFromHost(t *testing.T) {
	tg := serve(t, options{})
	for _, b := range [][]byte{
		pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, pdu.Fault{FES: 3, FEI: 7}, random(0, 128)),
		pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, pdu.Fault{FES: 0xFFFF}, nil),
	} {
		c := tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
		c.send(b)
		c.end()
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
}

// The deadlines before and after ICReq count for the whole, not per byte; a connected queue has none.
func TestHandshakeDeadlines(t *testing.T) {
	var req pdu.ICReq
	req.Set(&pdu.Params{}, 1)
	for name, second := range map[string]func(h *hand, n int){
		"silent":             func(*hand, int) {},
		"one byte at a time": func(h *hand, n int) { h.send(req[n : n+1]) },
		"no Connect command": func(h *hand, n int) { h.send(req[:len(req)*max(1-n, 0)]) },
	} {
		h := newHand(t, options{cfg: Config{ICReqTimeout: time.Minute, ConnectTimeout: time.Minute, DataTimeout: time.Hour}})
		h.open()
		n := 0
		for ; n < 100 && len(h.g.queues) > 0; n++ {
			second(h, n)
			h.loop.advance(time.Second)
			h.turn()
		}
		if n < 59 || n > 62 {
			t.Errorf("%s: ended after %d seconds, the limit is 60", name, n)
		}
		h.close()
	}
	h := newHand(t, options{cfg: Config{ICReqTimeout: time.Minute, ConnectTimeout: time.Minute, DataTimeout: time.Hour}})
	h.connect(pdu.Params{}, 8)
	h.loop.advance(10 * time.Minute)
	h.turn()
	if len(h.g.queues) != 1 {
		t.Error("a connected queue was ended")
	}
	h.close()
}

// A host that does not send the data it was asked for, or stops in the middle of a PDU, does not keep memory for ever.
func TestDataDeadlines(t *testing.T) {
	tg := serve(t, options{cfg: Config{DataTimeout: time.Minute}})
	sqe := rw(nvme.NVMWrite, 1, 0, 4096, true)
	header, data := tg.connect(t, pdu.Params{}, 4, 0), tg.connect(t, pdu.Params{}, 4, 0)
	header.send(header.capsule(&sqe, random(0, 4096))[:30])
	data.send(data.capsule(&sqe, random(0, 4096))[:3000])
	granted := tg.connect(t, pdu.Params{}, 4, 0)
	sqe = rw(nvme.NVMWrite, 1, 0, 8192, false)
	granted.send(granted.capsule(&sqe, nil))
	ttag := granted.r2t(1, 8192)
	granted.send(granted.h2cData(0, 1, ttag, 0, random(0, 4096)))
	eventually(t, "all connections gone", func() bool {
		tg.later(time.Minute)
		return tg.t.Connections() == 0
	})
	header.end()
	data.end()
	granted.end()
	if n := tg.free(); n != 16<<20 {
		t.Errorf("%d bytes of the arena are free", n)
	}
}

// A host that does not read is cut off, and costs no more memory than its commands.
func TestSendDeadline(t *testing.T) {
	tg := serve(t, options{cfg: Config{SendTimeout: 200 * time.Millisecond}})
	c := tg.connect(t, pdu.Params{}, 64, 0)
	for i := range 64 {
		sqe := rw(nvme.NVMRead, uint16(i), 0, 1<<20, false)
		c.send(c.capsule(&sqe, nil))
	}
	eventually(t, "the connection is cut", func() bool { return tg.t.Connections() == 0 })
	if n := tg.free(); n != 16<<20 {
		t.Errorf("%d bytes of the arena are free", n)
	}
}

// A host that reads slowly but steadily gets every byte, whatever the sizes of the pieces.
func TestSlowReader(t *testing.T) {
	tg := serve(t, options{lend: true})
	variants(t, func(t *testing.T, p pdu.Params) {
		c := tg.connect(t, p, 32, nvme.CATTRNoFlowControl)
		const n = 1 << 20
		for i := range 16 {
			sqe := rw(nvme.NVMRead, uint16(i), i*4096, n, false)
			c.send(c.capsule(&sqe, nil))
		}
		for i := range 16 {
			m := c.recv()
			d := (*pdu.Data)(m.raw)
			if m.t != pdu.TypeC2HData || d.CCCID() != uint16(i) || len(m.data) != n || d.Header().Flags()&pdu.Success == 0 {
				t.Fatalf("got %v %x", m.t, m.raw)
			}
			for j := 0; j < n; j += 509 {
				if m.data[j] != pattern(i*4096+j) {
					t.Fatalf("command %d, byte %d is wrong", i, j)
				}
			}
		}
		_ = c.Close()
	})
}
