package e2e

import (
	"math"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// hostileBlocks is the size of namespace 1.
const hostileBlocks = 64 << 20 / 512

var (
	outOfRange  = refused(nvme.LBAOutOfRange)
	noNamespace = refused(nvme.InvalidNamespaceOrFormat)
)

func readAt(slba uint64, n uint32) func(*attacker, *host.Op) {
	return func(a *attacker, op *host.Op) { op.Read(1, slba, n, a.buf[:min(n, 2048)*512]) }
}

func writeAt(slba uint64, n uint32) func(*attacker, *host.Op) {
	return func(a *attacker, op *host.Op) { op.Write(1, slba, n, a.buf[:n*512], 0) }
}

func readOf(nsid uint32) func(*attacker, *host.Op) {
	return func(a *attacker, op *host.Op) { op.Read(nsid, 0, 1, a.buf[:512]) }
}

// discard is a Dataset Management with n ranges, which set fills in.
func discard(n int, set func(ranges []byte)) func(*attacker, *host.Op) {
	return func(a *attacker, op *host.Op) {
		b := a.buf[:n*nvme.DSMRangeSize]
		clear(b)
		set(b)
		op.Discard(1, b)
	}
}

// reserve is a reservation command with n bytes of data.
func reserve(code nvme.Opcode, cdw10 uint32, n int) func(*attacker, *host.Op) {
	return func(a *attacker, op *host.Op) {
		op.SQE.SetOpcode(code)
		op.SQE.SetNSID(1)
		op.SQE.SetCDW(10, cdw10)
		op.Data = a.buf[:n]
	}
}

var ioAttacks = []attack{
	{
		name: "reserved registration", op: reserve(nvme.IOReservationRegister, 7, 16),
		want: refused(nvme.InvalidField),
	},
	{
		name: "reserved type", op: reserve(nvme.IOReservationAcquire, 0xFF00, 16),
		want: refused(nvme.InvalidField),
	},
	{
		name: "short keys", op: reserve(nvme.IOReservationAcquire, 0x100, 8),
		want: refused(nvme.DataSGLLengthInvalid),
	},
	{
		name: "preempt of a stranger", op: reserve(nvme.IOReservationAcquire, 0x102, 16),
		want: refused(nvme.ReservationConflict),
	},
	{
		name: "16 GiB of report", op: reserve(nvme.IOReservationReport, 0xFFFFFFFF, 4096),
		want: refused(nvme.HostIDInconsistent, nvme.InvalidField),
	},
	{name: "I01 first block beyond the end", op: readAt(hostileBlocks, 1), want: outOfRange},
	{name: "I01 across the end", op: readAt(hostileBlocks-1, 2), want: outOfRange},
	{name: "I01 largest LBA", op: readAt(math.MaxUint64, 1), want: outOfRange},
	{name: "I01 sum wraps", op: readAt(math.MaxUint64, 2), want: outOfRange},
	{name: "I01 write across the end", op: writeAt(hostileBlocks-1, 2), want: outOfRange},
	{name: "I02 bytes wrap", op: writeAt(1<<55, 1), want: outOfRange},
	{name: "I02 bytes wrap further", op: readAt(1<<61, 8), want: outOfRange},
	{name: "I02 sign", op: readAt(1<<63, 1), want: outOfRange},
	{
		name: "I03 beyond MDTS",
		op:   func(a *attacker, op *host.Op) { op.Read(1, 0, 2056, a.buf[:2056*512]) },
		want: refused(nvme.InvalidField),
	},
	{name: "I04 NSID 0", op: readOf(0), want: noNamespace},
	{name: "I04 NSID FFFFFFFFh", op: readOf(nvme.NSIDAll), want: noNamespace},
	{name: "I04 unknown NSID", op: readOf(77), want: badField},
	{
		name: "I05 flush of an unknown namespace",
		op:   func(_ *attacker, op *host.Op) { op.Flush(77) },
		want: badField,
	},
	{name: "I07 fused", op: func(a *attacker, op *host.Op) {
		op.Read(1, 0, 1, a.buf[:512])
		op.Raw = true
		op.SQE.SetFlags(0x41)
		op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 512)
	}, want: refused(nvme.InvalidField), tcp: true},
	{
		name: "I08 range beyond the end",
		op:   discard(1, func(b []byte) { (*nvme.DSMRange)(b).Set(hostileBlocks-1, 2) }),
		want: outOfRange,
	},
	{
		name: "I08 range wraps",
		op:   discard(1, func(b []byte) { (*nvme.DSMRange)(b).Set(math.MaxUint64, 2) }),
		want: outOfRange,
	},
	{
		name: "I08 256 ranges of nothing", op: discard(256, func([]byte) {}),
		want: refused(nvme.Success),
	},
	{name: "I08 not enough data", op: func(a *attacker, op *host.Op) {
		op.Discard(1, a.buf[:16])
		op.SQE.DSM().Set(2, true)
	}, want: refused(nvme.DataSGLLengthInvalid)},
	{name: "I08 without deallocate", op: func(a *attacker, op *host.Op) {
		op.Discard(1, a.buf[:16])
		op.SQE.DSM().Set(1, false)
	}, want: refused(nvme.Success)},
	{
		name: "I09 zeroes beyond the end",
		op:   func(_ *attacker, op *host.Op) { op.WriteZeroes(1, hostileBlocks-1, 2, 0) },
		want: outOfRange,
	},
	{
		name: "I09 zeroes wrap",
		op:   func(_ *attacker, op *host.Op) { op.WriteZeroes(1, math.MaxUint64-1, 65536, 0) },
		want: outOfRange,
	},
	{
		name: "I09 65536 blocks of zeroes",
		op: func(_ *attacker, op *host.Op) {
			op.WriteZeroes(1, 1024, 65536, nvme.RWDeallocate|nvme.RWFUA)
		},
		want: refused(nvme.Success, nvme.InvalidField),
	},
	{
		name: "I11 protection information",
		op:   func(a *attacker, op *host.Op) { op.Write(1, 8, 1, a.buf[:512], nvme.RWPRInfo) },
		want: refused(nvme.Success, nvme.InvalidField),
	},
	{
		name: "I11 directive",
		op:   func(a *attacker, op *host.Op) { op.Write(1, 8, 1, a.buf[:512], nvme.RWDirective) },
		want: refused(nvme.Success, nvme.InvalidField),
	},
	{
		name: "G05 property on an I/O queue",
		op: func(_ *attacker, op *host.Op) {
			op.SQE.Property().Set(nvme.FabricsPropertyGet, nvme.PropertyCAP, 0)
		},
		want: refused(nvme.InvalidOpcode, nvme.CommandSequenceError, nvme.InvalidField),
	},
	{name: "F16 second Connect", op: func(a *attacker, op *host.Op) {
		o := a.v.hostOptions()
		*op = *host.ConnectCommand(1, 32, &o, a.c.CNTLID())
	}, want: refused(nvme.CommandSequenceError)},
}

// TestHostileIO sends I/O commands that must be refused.
func TestHostileIO(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		a := newAttacker(h, v)
		a.run(t, false, ioAttacks)
		t.Run("I06 every other opcode", func(t *testing.T) {
			a.refuses(t, a.q.Do, nvme.NVMFlush, nvme.NVMWrite, nvme.NVMRead, nvme.NVMWriteZeroes,
				nvme.NVMDatasetManagement, nvme.NVMCompare, nvme.NVMVerify, nvme.NVMCopy,
				nvme.IOReservationRegister, nvme.IOReservationReport,
				nvme.IOReservationAcquire, nvme.IOReservationRelease, nvme.FabricsOpcode)
		})
	})
}
