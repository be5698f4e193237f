package e2e

import (
	"math"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

var (
	badType    = outcome{codes: []nvme.Status{nvme.SGLTypeInvalid, nvme.InvalidField}, ends: true}
	badSegment = outcome{codes: []nvme.Status{
		nvme.InvalidSGLSegment, nvme.InvalidSGLCount,
		nvme.SGLTypeInvalid, nvme.InvalidField,
	}, ends: true}
	badLength = outcome{codes: []nvme.Status{nvme.DataSGLLengthInvalid}, endsTCP: true}
	badOffset = outcome{codes: []nvme.Status{
		nvme.SGLOffsetInvalid, nvme.DataSGLLengthInvalid,
		nvme.InvalidField,
	}, ends: true}
	closed = outcome{ends: true}
)

type setSGL func(*nvme.SQE, *nvme.SGLDescriptor)

// raw is a read or write of 8 blocks (4096 bytes) with a descriptor altered by set.
func raw(code nvme.Opcode, set setSGL) func(*attacker, *host.Op) {
	return func(a *attacker, op *host.Op) {
		op.Read(1, 0, 8, nil)
		op.SQE.SetOpcode(code)
		op.Raw, op.Data = true, nil
		op.SQE.SetFlags(1 << 6)
		if a.v.isRDMA {
			op.SQE.SGL1().SetKeyed(nvme.SGLSubtypeAddress, 0, 4096, 0)
		} else {
			op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 4096)
		}
		set(&op.SQE, op.SQE.SGL1())
	}
}

func typed(ty nvme.SGLType, sub uint8, addr uint64, n uint32) setSGL {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetData(ty, sub, addr, n) }
}

// shorter sets the length of the descriptor.
func shorter(n uint32) setSGL {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) {
		if d.Type() == nvme.SGLKeyedDataBlock {
			d.SetKeyed(0, 0x1000, n, d.Key())
		} else {
			d.SetData(d.Type(), d.Subtype(), 0, n)
		}
	}
}

// flags sets PSDT and FUSE.
func flags(v uint8) setSGL { return func(s *nvme.SQE, _ *nvme.SGLDescriptor) { s.SetFlags(v) } }

// keyed is a keyed data block at 4096.
func keyed(n, key uint32) setSGL {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetKeyed(0, 4096, n, key) }
}

func oddSubtype(_ *nvme.SQE, d *nvme.SGLDescriptor) { d[15] = d[15]&0xF0 | 7 }

// sglAttacks are reads and writes with wrong descriptors, some for a single transport.
func sglAttacks() (list []attack) {
	const (
		r, w      = nvme.NVMRead, nvme.NVMWrite
		both      = nvme.TransportType(0)
		tcp, rdma = nvme.TransportTCP, nvme.TransportRDMA
		transport = nvme.SGLTransportDataBlock
		block     = nvme.SGLDataBlock
		offset    = nvme.SGLSubtypeOffset
		fabric    = nvme.SGLSubtypeTransport
	)
	badField := refused(nvme.InvalidField)
	intoCapsule := outcome{codes: []nvme.Status{
		nvme.InvalidField, nvme.SGLTypeInvalid, nvme.SGLOffsetInvalid, nvme.DataSGLLengthInvalid,
	}, ends: true}
	for _, row := range []struct {
		name string
		code nvme.Opcode
		set  setSGL
		want outcome
		only nvme.TransportType
	}{
		{"S01 PRPs", r, flags(0), badField, both},
		{"S01 PSDT 10b", r, flags(2 << 6), badField, both},
		{"S01 PSDT 11b", r, flags(3 << 6), badField, both},
		{"S02 FUSE 11b", r, flags(1<<6 | 3), badField, both},
		{"S03 type 3", r, typed(nvme.SGLLastSegment, 0, 0, 16), badSegment, both},
		{"S03 type 6", r, typed(6, 0, 0, 4096), badType, both},
		{"S03 type F", w, typed(0xF, 0xF, 0, 4096), badType, both},
		{"S03 bit bucket", r, typed(nvme.SGLBitBucket, 0, 0, 4096), badType, both},
		{"S04 subtype", r, oddSubtype, badType, both},
		{"S05 keyed on TCP", r, keyed(4096, 1), badType, tcp},
		{"S05 transport on RDMA", r, typed(transport, fabric, 0, 4096), badType, rdma},
		{"S06 segment", r, typed(nvme.SGLSegment, offset, 0, 32), badSegment, both},
		{"S06 odd length", w, typed(nvme.SGLLastSegment, offset, 0, 17), badSegment, both},
		{"S07 16 MiB keyed", r, keyed(0xFFFFFF, 1), badLength, rdma},
		{"S07 4 GiB", r, typed(transport, fabric, 0, 0xFFFFFFFF), badLength, tcp},
		{"S07 4 GiB write", w, typed(transport, fabric, 0, 0xFFFFFFFF), badLength, tcp},
		{"S08 too short", r, shorter(512), badLength, both},
		{"S08 too short for a write", w, shorter(4095), badLength, both},
		{"S09 too long", r, shorter(4097), badLength, both},
		{"S09 too long for a write", w, shorter(8192), badLength, both},
		{"S10 nothing", r, shorter(0), badLength, both},
		{"S11 read into the capsule", r, typed(block, offset, 0, 4096), intoCapsule, both},
		{"S12 beyond the capsule", w, typed(block, offset, 1<<20, 4096), badOffset, both},
		{"S12 wrap", w, typed(block, offset, math.MaxUint64-10, 4096), badOffset, both},
		{"S12 missing data", w, typed(block, offset, 0, 4096), badOffset, both},
		{"S13 read to an unknown key", r, keyed(4096, 0xDEADBEEF), closed, rdma},
		{"S13 write from an unknown key", w, keyed(4096, 0xDEADBEEF), closed, rdma},
	} {
		list = append(list, attack{
			name: row.name, op: raw(row.code, row.set), want: row.want,
			tcp: row.only == tcp, rdma: row.only == rdma,
		})
	}
	return append(list, attack{name: "S15 MPTR", op: func(a *attacker, op *host.Op) {
		op.Read(1, 0, 8, a.buf[:4096])
		op.SQE.SetCDW64(4, 0x1234)
	}, want: refused(nvme.Success, nvme.InvalidField)})
}

// hostileBlocks is the size of namespace 1.
const hostileBlocks = 64 << 20 / 512

// lengthAttacks have more or less data than their command takes, or belong to a refused command.
// The transport must be in step afterwards.
var lengthAttacks = []attack{
	{name: "I01 write across the end", op: func(a *attacker, op *host.Op) {
		op.Write(1, hostileBlocks-1, 2, a.buf[:1024], 0)
	}, want: refused(nvme.LBAOutOfRange)},
	{name: "I01 long write across the end", op: func(a *attacker, op *host.Op) {
		op.Write(1, hostileBlocks-1, 256, a.buf[:128<<10], 0)
	}, want: refused(nvme.LBAOutOfRange)},
	{name: "I02 bytes wrap", op: func(a *attacker, op *host.Op) {
		op.Read(1, 1<<61, 8, a.buf[:4096])
	}, want: refused(nvme.LBAOutOfRange)},
	{name: "I03 read beyond MDTS", op: func(a *attacker, op *host.Op) {
		op.Read(1, 0, 2056, a.buf[:2056*512])
	}, want: refused(nvme.InvalidField)},
	{name: "I04 write to an unknown namespace", op: func(a *attacker, op *host.Op) {
		op.Write(77, 0, 1, a.buf[:512], 0)
	}, want: refused(nvme.InvalidField)},
	{name: "I08 not enough data", op: func(a *attacker, op *host.Op) {
		hosttest.SetDiscard(op, 1, a.buf[:16])
		op.SQE.DSM().Set(2, true)
	}, want: refused(nvme.DataSGLLengthInvalid)},
	{name: "I08 256 ranges of nothing", op: func(a *attacker, op *host.Op) {
		clear(a.buf[:256*nvme.DSMRangeSize])
		hosttest.SetDiscard(op, 1, a.buf[:256*nvme.DSMRangeSize])
	}, want: refused(nvme.Success)},
	{name: "short keys of a reservation", op: func(a *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.IOReservationAcquire)
		op.SQE.SetNSID(1)
		op.SQE.SetCDW(10, 0x100)
		op.Data = a.buf[:8]
	}, want: refused(nvme.DataSGLLengthInvalid)},
	{name: "F16 second Connect", op: func(a *attacker, op *host.Op) {
		o := a.v.hostOptions()
		*op = *host.ConnectCommand(1, 32, &o, a.c.CNTLID())
	}, want: refused(nvme.CommandSequenceError)},
	{name: "M05 512 bytes of Identify", op: func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.Identify().Set(nvme.CNSController, 0, 0)
		op.Data = make([]byte, 512)
	}, want: refused(nvme.DataSGLLengthInvalid), admin: true},
	{name: "M07 16 GiB of log", op: func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.AdminGetLogPage)
		op.SQE.SetNSID(nvme.NSIDAll)
		op.SQE.GetLog().Set(nvme.LogSMART, 16<<30, 0, 0, false)
		op.Data = make([]byte, 512)
	}, want: refused(nvme.DataSGLLengthInvalid, nvme.InvalidField), admin: true},
}

// TestHostile sends commands that must be refused, and some that are unusual but legal, to each
// kind of listener. The connection must continue or end as expected, and another host must be
// unaffected. Package target tests the status of each refused command.
func TestHostile(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *env, v variant) {
		newAttacker(h, v).run(t, append(sglAttacks(), lengthAttacks...))
	})
}
