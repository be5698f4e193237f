package e2e

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// outcome is what a hostile command may end with.
type outcome struct {
	codes []nvme.Status // without DNR and More
	retry bool          // the host may try again: DNR must not be set; otherwise it must be
	ends  bool          // the connection may end instead
}

func refused(codes ...nvme.Status) outcome { return outcome{codes: codes} }

// accepts judges an answer.
func (o outcome) accepts(cqe *nvme.CQE, err error) bool {
	if err != nil {
		return o.ends && errors.Is(err, host.ErrClosed)
	}
	st := cqe.Status()
	if !slices.Contains(o.codes, st.Code()) {
		return false
	}
	return st.OK() || (st&nvme.DNR == 0) == o.retry
}

// attack is one hostile command on an I/O or admin queue.
type attack struct {
	name string
	op   func(op *host.Op)
	want outcome
	rdma bool // RDMA only
	tcp  bool // TCP only
}

// prey is a connected host that attacks from a queue, and another that must not notice.
type prey struct {
	r       *rig
	w       way
	c       *host.Controller
	q       *host.Queue
	buf     []byte
	steady  *host.Controller
	steadyQ *host.Queue
	data    []byte
}

func newPrey(r *rig, w way) *prey {
	p := &prey{r: r, w: w}
	p.steady = r.connect(w, func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
	p.steadyQ = r.open(p.steady, 1, 32)
	p.data = r.buffer(p.steady, 8192)
	pattern(p.data[:4096], 77)
	r.must(p.steadyQ.Write(testContext(r.t), 2, 100, 1, p.data[:4096], 0))
	p.reconnect()
	return p
}

func (p *prey) reconnect() {
	p.c = p.r.connect(p.w)
	p.q = p.r.open(p.c, 1, 32)
	p.buf = p.r.buffer(p.c, mdts+65536)
}

// unharmed checks that the other host reads what it wrote.
func (p *prey) unharmed(t *testing.T) {
	t.Helper()
	back := p.data[4096:]
	clear(back)
	if err := p.steadyQ.Read(testContext(t), 2, 100, 1, back); err != nil {
		t.Fatalf("another host: %v", err)
	}
	if d := differ(back, p.data[:4096]); d != "" {
		t.Fatalf("another host: %s", d)
	}
}

// run makes each attack, on a connection that works.
func (p *prey) run(t *testing.T, admin bool, attacks []attack) {
	for _, a := range attacks {
		if a.rdma && !p.w.isRDMA || a.tcp && p.w.isRDMA {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			op := new(host.Op)
			a.op(op)
			var cqe nvme.CQE
			var err error
			if admin {
				cqe, err = p.c.Admin(testContext(t), op)
			} else {
				cqe, err = p.q.Do(testContext(t), op)
			}
			if !a.want.accepts(&cqe, err) {
				t.Errorf("got %v, error %v; want %v, retry %t, or the end %t", cqe.Status(), err, a.want.codes, a.want.retry, a.want.ends)
			}
			p.unharmed(t)
			if p.q.Err() != nil || p.c.Err() != nil {
				p.reconnect()
			}
			if err := p.q.Read(testContext(t), 1, 0, 1, p.buf[:512]); err != nil {
				t.Fatalf("the queue afterwards: %v", err)
			}
		})
	}
}

// TestHostileIO sends I/O commands that must be refused.
func TestHostileIO(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		p := newPrey(r, w)
		const blocks = 64 << 20 / 512
		lba := func(slba uint64, n uint32) func(*host.Op) {
			return func(op *host.Op) { op.Read(1, slba, n, p.buf[:min(n, 2048)*512]) }
		}
		write := func(slba uint64, n uint32) func(*host.Op) {
			return func(op *host.Op) { op.Write(1, slba, n, p.buf[:n*512], 0) }
		}
		nsid := func(id uint32) func(*host.Op) { return func(op *host.Op) { op.Read(id, 0, 1, p.buf[:512]) } }
		ranges := func(n int, set func(r []byte)) func(*host.Op) {
			return func(op *host.Op) {
				b := p.buf[:n*nvme.DSMRangeSize]
				clear(b)
				set(b)
				op.Discard(1, b)
			}
		}
		outOfRange := refused(nvme.LBAOutOfRange)
		noNamespace := refused(nvme.InvalidNamespaceOrFormat)
		attacks := []attack{
			{name: "I01 first block beyond the end", op: lba(blocks, 1), want: outOfRange},
			{name: "I01 across the end", op: lba(blocks-1, 2), want: outOfRange},
			{name: "I01 last LBA there is", op: lba(math.MaxUint64, 1), want: outOfRange},
			{name: "I01 sum wraps", op: lba(math.MaxUint64, 2), want: outOfRange},
			{name: "I01 write across the end", op: write(blocks-1, 2), want: outOfRange},
			{name: "I02 bytes wrap", op: write(1<<55, 1), want: outOfRange},
			{name: "I02 bytes wrap further", op: lba(1<<61, 8), want: outOfRange},
			{name: "I02 sign", op: lba(1<<63, 1), want: outOfRange},
			{name: "I03 beyond MDTS", op: func(op *host.Op) { op.Read(1, 0, 2056, p.buf[:2056*512]) }, want: refused(nvme.InvalidField)},
			{name: "I04 NSID 0", op: nsid(0), want: noNamespace},
			{name: "I04 NSID FFFFFFFFh", op: nsid(nvme.NSIDAll), want: noNamespace},
			{name: "I04 unknown NSID", op: nsid(77), want: noNamespace},
			{name: "I05 flush of an unknown namespace", op: func(op *host.Op) { op.Flush(77) }, want: noNamespace},
			{name: "I07 fused", op: func(op *host.Op) {
				op.Read(1, 0, 1, p.buf[:512])
				op.Raw = true
				op.SQE.SetFlags(0x41)
				op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 512)
			}, want: refused(nvme.InvalidField), tcp: true},
			{name: "I08 range beyond the end", op: ranges(1, func(b []byte) { (*nvme.DSMRange)(b).Set(blocks-1, 2) }), want: outOfRange},
			{name: "I08 range wraps", op: ranges(1, func(b []byte) { (*nvme.DSMRange)(b).Set(math.MaxUint64, 2) }), want: outOfRange},
			{name: "I08 256 ranges of nothing", op: ranges(256, func([]byte) {}), want: refused(nvme.Success)},
			{name: "I08 not enough data", op: func(op *host.Op) {
				op.Discard(1, p.buf[:16])
				op.SQE.DSM().Set(2, true)
			}, want: refused(nvme.DataSGLLengthInvalid)},
			{name: "I08 without deallocate", op: func(op *host.Op) {
				op.Discard(1, p.buf[:16])
				op.SQE.DSM().Set(1, false)
			}, want: refused(nvme.Success)},
			{name: "I09 zeroes beyond the end", op: func(op *host.Op) { op.WriteZeroes(1, blocks-1, 2, 0) }, want: outOfRange},
			{name: "I09 zeroes wrap", op: func(op *host.Op) { op.WriteZeroes(1, math.MaxUint64-1, 65536, 0) }, want: outOfRange},
			{
				name: "I09 65536 blocks of zeroes", op: func(op *host.Op) { op.WriteZeroes(1, 1024, 65536, nvme.RWDeallocate|nvme.RWFUA) },
				want: refused(nvme.Success, nvme.InvalidField),
			},
			{
				name: "I11 protection information", op: func(op *host.Op) { op.Write(1, 8, 1, p.buf[:512], nvme.RWPRInfo) },
				want: refused(nvme.Success, nvme.InvalidField),
			},
			{
				name: "I11 directive", op: func(op *host.Op) { op.Write(1, 8, 1, p.buf[:512], nvme.RWDirective) },
				want: refused(nvme.Success, nvme.InvalidField),
			},
			{
				name: "G05 property on an I/O queue", op: func(op *host.Op) { op.SQE.Property().Set(nvme.FabricsPropertyGet, nvme.PropertyCAP, 0) },
				want: refused(nvme.InvalidOpcode, nvme.CommandSequenceError, nvme.InvalidField),
			},
			{name: "F16 second Connect", op: func(op *host.Op) {
				o := w.hostOptions()
				*op = *host.ConnectCommand(1, 32, &o, p.c.CNTLID())
			}, want: refused(nvme.CommandSequenceError)},
		}
		p.run(t, false, attacks)

		t.Run("I06 every other opcode", func(t *testing.T) {
			known := []nvme.Opcode{
				nvme.NVMFlush, nvme.NVMWrite, nvme.NVMRead, nvme.NVMWriteZeroes, nvme.NVMDatasetManagement, nvme.FabricsOpcode,
			}
			for code := range 256 {
				if slices.Contains(known, nvme.Opcode(code)) {
					continue
				}
				op := new(host.Op)
				op.SQE.SetOpcode(nvme.Opcode(code))
				op.SQE.SetNSID(1)
				if cqe, err := p.q.Do(testContext(t), op); err != nil || cqe.Status()&^nvme.More != nvme.InvalidOpcode|nvme.DNR {
					t.Fatalf("opcode %#x: %v, %v", code, cqe.Status(), err)
				}
			}
		})
	})
}

// TestHostileSGL sends descriptors that must be refused, and some that are odd but legal.
func TestHostileSGL(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		p := newPrey(r, w)
		// raw makes a read or write of 8 blocks (4096 bytes) with a descriptor of its own.
		raw := func(code nvme.Opcode, data []byte, set func(s *nvme.SQE, d *nvme.SGLDescriptor)) func(*host.Op) {
			return func(op *host.Op) {
				op.Read(1, 0, 8, nil)
				op.SQE.SetOpcode(code)
				op.Raw, op.Data = true, data
				op.SQE.SetFlags(1 << 6)
				if w.isRDMA {
					op.SQE.SGL1().SetKeyed(nvme.SGLSubtypeAddress, 0, 4096, 0)
				} else {
					op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 4096)
				}
				set(&op.SQE, op.SQE.SGL1())
			}
		}
		read := func(set func(s *nvme.SQE, d *nvme.SGLDescriptor)) func(*host.Op) { return raw(nvme.NVMRead, nil, set) }
		write := func(set func(s *nvme.SQE, d *nvme.SGLDescriptor)) func(*host.Op) { return raw(nvme.NVMWrite, nil, set) }
		typed := func(ty nvme.SGLType, sub uint8, addr uint64, n uint32) func(*nvme.SQE, *nvme.SGLDescriptor) {
			return func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetData(ty, sub, addr, n) }
		}
		field := outcome{codes: []nvme.Status{nvme.InvalidField}}
		badType := outcome{codes: []nvme.Status{nvme.SGLTypeInvalid, nvme.InvalidField}, ends: true}
		badSegment := outcome{codes: []nvme.Status{nvme.InvalidSGLSegment, nvme.InvalidSGLCount, nvme.SGLTypeInvalid, nvme.InvalidField}, ends: true}
		badLength := outcome{codes: []nvme.Status{nvme.DataSGLLengthInvalid}, ends: !w.isRDMA}
		badOffset := outcome{codes: []nvme.Status{nvme.SGLOffsetInvalid, nvme.DataSGLLengthInvalid, nvme.InvalidField}, ends: true}
		dead := outcome{ends: true}
		attacks := []attack{
			{name: "S01 PRPs", op: read(func(s *nvme.SQE, _ *nvme.SGLDescriptor) { s.SetFlags(0) }), want: field},
			{name: "S01 PSDT 10b", op: read(func(s *nvme.SQE, _ *nvme.SGLDescriptor) { s.SetFlags(2 << 6) }), want: field},
			{name: "S01 PSDT 11b", op: read(func(s *nvme.SQE, _ *nvme.SGLDescriptor) { s.SetFlags(3 << 6) }), want: field},
			{name: "S02 FUSE 11b", op: read(func(s *nvme.SQE, _ *nvme.SGLDescriptor) { s.SetFlags(1<<6 | 3) }), want: field},
			{name: "S03 type 3", op: read(typed(nvme.SGLLastSegment, 0, 0, 16)), want: badSegment},
			{name: "S03 type 6", op: read(typed(6, 0, 0, 4096)), want: badType},
			{name: "S03 type F", op: write(typed(0xF, 0xF, 0, 4096)), want: badType},
			{name: "S03 bit bucket", op: read(typed(nvme.SGLBitBucket, 0, 0, 4096)), want: badType},
			{name: "S04 subtype", op: read(func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d[15] = d[15]&0xF0 | 7 }), want: badType},
			{name: "S05 keyed on TCP", op: read(func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetKeyed(0, 4096, 4096, 1) }), want: badType, tcp: true},
			{name: "S05 transport on RDMA", op: read(typed(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 4096)), want: badType, rdma: true},
			{name: "S06 segment", op: read(typed(nvme.SGLSegment, nvme.SGLSubtypeOffset, 0, 32)), want: badSegment},
			{name: "S06 segment of odd length", op: write(typed(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, 0, 17)), want: badSegment},
			{name: "S07 16 MiB keyed", op: read(func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetKeyed(0, 4096, 0xFFFFFF, 1) }), want: badLength, rdma: true},
			{name: "S07 4 GiB", op: read(typed(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 0xFFFFFFFF)), want: badLength, tcp: true},
			{name: "S07 4 GiB write", op: write(typed(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 0xFFFFFFFF)), want: badLength, tcp: true},
			{name: "S08 too short", op: read(shorter(512)), want: badLength},
			{name: "S08 too short for a write", op: write(shorter(4095)), want: badLength},
			{name: "S09 too long", op: read(shorter(4097)), want: badLength},
			{name: "S09 too long for a write", op: write(shorter(8192)), want: badLength},
			{name: "S10 nothing", op: read(shorter(0)), want: badLength},
			{
				name: "S11 read into the capsule", op: read(typed(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 4096)),
				want: outcome{codes: []nvme.Status{nvme.InvalidField, nvme.SGLTypeInvalid, nvme.SGLOffsetInvalid, nvme.DataSGLLengthInvalid}, ends: true},
			},
			{name: "S12 offset beyond the capsule", op: write(typed(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 1<<20, 4096)), want: badOffset},
			{name: "S12 offset and length wrap", op: write(typed(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, math.MaxUint64-10, 4096)), want: badOffset},
			{name: "S12 data that is not there", op: write(typed(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 4096)), want: badOffset},
			{name: "S13 read to a key of nobody", op: read(func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetKeyed(0, 4096, 4096, 0xDEADBEEF) }), want: dead, rdma: true},
			{name: "S13 write from a key of nobody", op: write(func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetKeyed(0, 4096, 4096, 0xDEADBEEF) }), want: dead, rdma: true},
			{name: "S15 MPTR", op: func(op *host.Op) {
				op.Read(1, 0, 8, p.buf[:4096])
				op.SQE.SetCDW64(4, 0x1234)
			}, want: refused(nvme.Success, nvme.InvalidField)},
		}
		p.run(t, false, attacks)
	})
}

// shorter sets the length of the descriptor that is there.
func shorter(n uint32) func(*nvme.SQE, *nvme.SGLDescriptor) {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) {
		if d.Type() == nvme.SGLKeyedDataBlock {
			d.SetKeyed(0, 0x1000, n, d.Key())
		} else {
			d.SetData(d.Type(), d.Subtype(), 0, n)
		}
	}
}

// TestHostileAdmin sends admin and Fabrics commands that must be refused.
func TestHostileAdmin(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		p := newPrey(r, w)
		identify := func(cns nvme.CNS, nsid uint32, n int) func(*host.Op) {
			return func(op *host.Op) {
				op.SQE.SetOpcode(nvme.AdminIdentify)
				op.SQE.SetNSID(nsid)
				op.SQE.Identify().Set(cns, 0, 0)
				op.Data = make([]byte, n)
			}
		}
		getLog := func(lid nvme.LID, nsid uint32, asked, offset uint64, n int) func(*host.Op) {
			return func(op *host.Op) {
				op.SQE.SetOpcode(nvme.AdminGetLogPage)
				op.SQE.SetNSID(nsid)
				op.SQE.GetLog().Set(lid, asked, offset, 0, false)
				op.Data = make([]byte, n)
			}
		}
		feature := func(code nvme.Opcode, cdw10, cdw11 uint32, n int) func(*host.Op) {
			return func(op *host.Op) {
				op.SQE.SetOpcode(code)
				op.SQE.SetCDW(10, cdw10)
				op.SQE.SetCDW(11, cdw11)
				op.Data = make([]byte, n)
			}
		}
		property := func(typ nvme.FabricsType, off nvme.PropertyOffset, attrib byte, v uint64) func(*host.Op) {
			return func(op *host.Op) {
				op.SQE.Property().Set(typ, off, v)
				op.SQE[40] = attrib
			}
		}
		field := refused(nvme.InvalidField)
		length := refused(nvme.DataSGLLengthInvalid, nvme.InvalidField)
		noNamespace := refused(nvme.InvalidNamespaceOrFormat)
		attacks := []attack{
			{name: "M02 unknown CNS", op: identify(0xFE, 0, 4096), want: field},
			{name: "M02 unknown command set", op: func(op *host.Op) {
				identify(nvme.CNSCommandSetController, 0, 4096)(op)
				op.SQE.Identify().Set(nvme.CNSCommandSetController, 0, 9)
			}, want: field},
			{name: "M03 namespace 0", op: identify(nvme.CNSNamespace, 0, 4096), want: noNamespace},
			{name: "M03 unknown namespace", op: identify(nvme.CNSNamespace, 0x7FFFFFFF, 4096), want: noNamespace},
			{name: "M03 descriptors of an unknown namespace", op: identify(nvme.CNSDescriptors, 77, 4096), want: noNamespace},
			{name: "M04 list from FFFFFFFEh", op: identify(nvme.CNSActiveNamespaces, 0xFFFFFFFE, 4096), want: noNamespace},
			{name: "M04 list from FFFFFFFFh", op: identify(nvme.CNSActiveNamespaces, 0xFFFFFFFF, 4096), want: noNamespace},
			{name: "M05 512 bytes", op: identify(nvme.CNSController, 0, 512), want: length},
			{name: "M05 nothing", op: identify(nvme.CNSController, 0, 0), want: length},
			{name: "M06 unknown log", op: getLog(0xEE, nvme.NSIDAll, 512, 0, 512), want: refused(nvme.InvalidLogPage)},
			{name: "M07 16 GiB of log", op: getLog(nvme.LogSMART, nvme.NSIDAll, 16<<30, 0, 512), want: length},
			{name: "M07 more than the buffer", op: getLog(nvme.LogSMART, nvme.NSIDAll, 516, 0, 512), want: length},
			{name: "M07 odd offset", op: getLog(nvme.LogSMART, nvme.NSIDAll, 4, 3, 4), want: field},
			{name: "M07 offset at 2^64-4", op: getLog(nvme.LogSMART, nvme.NSIDAll, 512, math.MaxUint64-3, 512), want: field},
			{name: "M07 offset past the end", op: getLog(nvme.LogSMART, nvme.NSIDAll, 4, 516, 4), want: field},
			{
				name: "M08 log of an unknown namespace", op: getLog(nvme.LogSMART, 77, 512, 0, 512),
				want: refused(nvme.InvalidNamespaceOrFormat, nvme.InvalidField),
			},
			{name: "M09 FFFFh queues", op: feature(nvme.AdminSetFeatures, uint32(nvme.FeatureNumberOfQueues), 0xFFFFFFFF, 0), want: field},
			{
				name: "M09 queues while some exist", op: feature(nvme.AdminSetFeatures, uint32(nvme.FeatureNumberOfQueues), 0x10001, 0),
				want: refused(nvme.CommandSequenceError, nvme.Success),
			},
			{name: "M10 unknown feature", op: feature(nvme.AdminGetFeatures, 0xEE, 0, 0), want: field},
			{name: "M10 set an unknown feature", op: feature(nvme.AdminSetFeatures, 0xEE, 0, 0), want: field},
			{name: "M10 reserved select", op: feature(nvme.AdminGetFeatures, uint32(nvme.FeatureNumberOfQueues)|7<<8, 0, 0), want: field},
			{
				name: "M10 save", op: feature(nvme.AdminSetFeatures, uint32(nvme.FeatureAsyncEventConfig)|1<<31, 0, 0),
				want: refused(nvme.FeatureNotSaveable),
			},
			{name: "M11 set the host identifier", op: func(op *host.Op) {
				feature(nvme.AdminSetFeatures, uint32(nvme.FeatureHostIdentifier), 1, 16)(op)
			}, want: refused(nvme.CommandSequenceError)},
			{name: "M13 keep alive without a timer", op: func(op *host.Op) { op.SQE.SetOpcode(nvme.AdminKeepAlive) }, want: refused(nvme.KATOInvalid)},
			{name: "F16 second Connect", op: func(op *host.Op) {
				o := w.hostOptions()
				*op = *host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
			}, want: refused(nvme.CommandSequenceError)},
			{name: "G01 unknown property", op: property(nvme.FabricsPropertyGet, 0x24, 0, 0), want: field},
			{name: "G01 CAP in 4 bytes", op: property(nvme.FabricsPropertyGet, nvme.PropertyCAP, 0, 0), want: field},
			{name: "G01 VS in 8 bytes", op: property(nvme.FabricsPropertyGet, nvme.PropertyVS, 1, 0), want: field},
			{name: "G01 reserved size", op: property(nvme.FabricsPropertyGet, nvme.PropertyVS, 2, 0), want: field},
			{name: "G01 unaligned", op: property(nvme.FabricsPropertyGet, 0x15, 0, 0), want: field},
			{name: "G02 set CAP", op: property(nvme.FabricsPropertySet, nvme.PropertyCAP, 1, 1), want: refused(nvme.InvalidField, nvme.ConnectInvalidParameters)},
			{name: "G02 set CSTS", op: property(nvme.FabricsPropertySet, nvme.PropertyCSTS, 0, 1), want: refused(nvme.InvalidField, nvme.ConnectInvalidParameters)},
			{name: "G03 SHN 11b", op: property(nvme.FabricsPropertySet, nvme.PropertyCC, 0, uint64(nvme.CCLinux|3<<14)), want: field},
			{name: "G03 page size", op: property(nvme.FabricsPropertySet, nvme.PropertyCC, 0, uint64(nvme.CCLinux|9<<7)), want: field},
			{name: "G03 arbitration", op: property(nvme.FabricsPropertySet, nvme.PropertyCC, 0, uint64(nvme.CCLinux|7<<11)), want: field},
			{name: "G03 command set", op: property(nvme.FabricsPropertySet, nvme.PropertyCC, 0, uint64(nvme.CCLinux|5<<4)), want: field},
			{name: "G03 entry sizes", op: property(nvme.FabricsPropertySet, nvme.PropertyCC, 0, uint64(nvme.CCEnable|7<<16|4<<20)), want: field},
			{name: "G06 disconnect of the admin queue", op: func(op *host.Op) {
				op.SQE.SetOpcode(nvme.FabricsOpcode)
				op.SQE[4] = byte(nvme.FabricsDisconnect)
			}, want: refused(nvme.InvalidOpcode, nvme.InvalidField, nvme.InvalidQueueIdentifier, nvme.InvalidQueueType)},
			{name: "A02 security send", op: func(op *host.Op) {
				op.SQE.SetOpcode(nvme.FabricsOpcode)
				op.SQE[4] = byte(nvme.FabricsAuthSend)
				op.Data = make([]byte, 512)
			}, want: refused(nvme.InvalidOpcode, nvme.InvalidField, nvme.CommandSequenceError)},
			{name: "S02 fused admin", op: func(op *host.Op) {
				op.SQE.SetOpcode(nvme.AdminGetFeatures)
				op.SQE.SetCDW(10, uint32(nvme.FeatureNumberOfQueues))
				op.Raw = true
				op.SQE.SetFlags(1<<6 | 1)
				if w.isRDMA {
					op.SQE.SGL1().SetKeyed(0, 0, 0, 0)
				} else {
					op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 0)
				}
			}, want: field},
		}
		p.run(t, true, attacks)

		t.Run("M01 M15 M16 every other opcode", func(t *testing.T) {
			known := []nvme.Opcode{
				nvme.AdminGetLogPage, nvme.AdminIdentify, nvme.AdminAbort, nvme.AdminSetFeatures, nvme.AdminGetFeatures,
				nvme.AdminAsyncEventReq, nvme.AdminKeepAlive, nvme.FabricsOpcode,
			}
			for code := range 256 {
				if slices.Contains(known, nvme.Opcode(code)) {
					continue
				}
				op := new(host.Op)
				op.SQE.SetOpcode(nvme.Opcode(code))
				if cqe, err := p.c.Admin(testContext(t), op); err != nil || cqe.Status()&^nvme.More != nvme.InvalidOpcode|nvme.DNR {
					t.Fatalf("opcode %#x: %v, %v", code, cqe.Status(), err)
				}
			}
		})
		t.Run("unknown Fabrics types", func(t *testing.T) {
			for typ := range 256 {
				switch nvme.FabricsType(typ) {
				case nvme.FabricsPropertySet, nvme.FabricsConnect, nvme.FabricsPropertyGet, nvme.FabricsAuthSend, nvme.FabricsAuthReceive, nvme.FabricsDisconnect:
					continue
				}
				op := new(host.Op)
				op.SQE.SetOpcode(nvme.FabricsOpcode)
				op.SQE[4] = byte(typ)
				if cqe, err := p.c.Admin(testContext(t), op); err != nil || cqe.Status().Code() != nvme.InvalidOpcode {
					t.Fatalf("type %#x: %v, %v", typ, cqe.Status(), err)
				}
			}
		})
	})
}

// TestHostileConnect sends Connect commands that must be refused, each on a connection of its own.
func TestHostileConnect(t *testing.T) {
	bothWays(t, func(o *options) { o.hosts = []string{hostNQN, hostNQN2} }, func(t *testing.T, r *rig, w way) {
		p := newPrey(r, w)
		id := p.c.CNTLID()
		const subNQNAt, hostNQNAt, cntlidAt, hostIDAt = 256, 512, 16, 0
		bad := refused(nvme.ConnectInvalidParameters)
		for _, tc := range []struct {
			name   string
			qid    uint16
			cntlid uint16
			alter  func(op *host.Op)
			want   outcome
			ipo    int // -1: anything
			inData bool
		}{
			{"F02 record format", 0, 0xFFFF, func(op *host.Op) { op.SQE[40] = 1 }, refused(nvme.ConnectIncompatibleFormat), -1, false},
			{"F03 short data", 0, 0xFFFF, func(op *host.Op) { op.Data = op.Data[:512] }, refused(nvme.DataSGLLengthInvalid), -1, false},
			{"F03 no data", 0, 0xFFFF, func(op *host.Op) { op.Data = nil }, refused(nvme.DataSGLLengthInvalid), -1, false},
			{"F03 long data", 0, 0xFFFF, func(op *host.Op) { op.Data = append(op.Data, make([]byte, 512)...) }, refused(nvme.DataSGLLengthInvalid), -1, false},
			{"F04 unknown subsystem", 0, 0xFFFF, func(op *host.Op) { op.Data[subNQNAt+10] ^= 1 }, bad, subNQNAt, true},
			{"F04 wrong case", 0, 0xFFFF, func(op *host.Op) { op.Data[subNQNAt+1] = 'Q' }, bad, subNQNAt, true},
			{"F04 empty subsystem", 0, 0xFFFF, func(op *host.Op) { clear(op.Data[subNQNAt:hostNQNAt]) }, bad, subNQNAt, true},
			{"F04 subsystem without NUL", 0, 0xFFFF, func(op *host.Op) { fillBytes(op.Data[subNQNAt:hostNQNAt], 0xFF) }, bad, subNQNAt, true},
			{"F05 host not allowed", 0, 0xFFFF, func(op *host.Op) { op.Data[hostNQNAt+50]-- }, refused(nvme.ConnectInvalidHost), hostNQNAt, true},
			{"F06 empty host", 0, 0xFFFF, func(op *host.Op) { clear(op.Data[hostNQNAt:768]) }, bad, hostNQNAt, true},
			{"F06 host without NUL", 0, 0xFFFF, func(op *host.Op) { fillBytes(op.Data[hostNQNAt:768], '%') }, bad, hostNQNAt, true},
			{"F06 host with escapes", 0, 0xFFFF, func(op *host.Op) { copy(op.Data[hostNQNAt:], "\x1b[2J\n%s\xff\x00") }, refused(nvme.ConnectInvalidParameters, nvme.ConnectInvalidHost), hostNQNAt, true},
			{"F07 static controller", 0, 5, func(*host.Op) {}, bad, cntlidAt, true},
			{"F07 any static controller", 0, 0xFFFE, func(*host.Op) {}, bad, cntlidAt, true},
			{"F08 SQSIZE 0", 0, 0xFFFF, func(op *host.Op) { op.SQE[44], op.SQE[45] = 0, 0 }, bad, 44, false},
			{"F09 SQSIZE FFFFh", 0, 0xFFFF, func(op *host.Op) { op.SQE[44], op.SQE[45] = 0xFF, 0xFF }, bad, 44, false},
			{"F09 I/O SQSIZE FFFFh", 2, id, func(op *host.Op) { op.SQE[44], op.SQE[45] = 0xFF, 0xFF }, bad, 44, false},
			{"F10 unknown controller", 2, id + 100, func(*host.Op) {}, bad, cntlidAt, true},
			{"F10 any controller", 2, 0xFFFF, func(*host.Op) {}, bad, cntlidAt, true},
			{"F11 another host's controller", 2, id, func(op *host.Op) { copy(op.Data[hostNQNAt:], hostNQN2) }, refused(nvme.ConnectInvalidParameters, nvme.ConnectInvalidHost), -1, true},
			{"F11 another host identifier", 2, id, func(op *host.Op) { op.Data[hostIDAt]++ }, refused(nvme.ConnectInvalidParameters, nvme.ConnectInvalidHost), -1, true},
			{"F12 queue exists", 1, id, func(*host.Op) {}, refused(nvme.CommandSequenceError, nvme.InvalidQueueIdentifier, nvme.ConnectInvalidParameters), -1, false},
			{"F13 QID beyond those granted", 1000, id, func(*host.Op) {}, refused(nvme.ConnectInvalidParameters, nvme.InvalidQueueIdentifier), -1, false},
			{"F15 I/O queue of the discovery subsystem", 2, id, func(op *host.Op) { copy(op.Data[subNQNAt:], nvme.DiscoveryNQN+"\x00") }, bad, -1, true},
			{"F21 host identifier 0 on an I/O queue is ignored", 2, id, func(op *host.Op) { clear(op.Data[:16]) }, refused(nvme.Success), -1, false},
			{"F21 host identifier 0", 0, 0xFFFF, func(op *host.Op) { clear(op.Data[:16]) }, refused(nvme.ConnectInvalidParameters, nvme.HostIDInconsistent, nvme.Success), -1, true},
		} {
			t.Run(tc.name, func(t *testing.T) {
				cm := tc.cntlid
				if tc.qid != 0 && cm > nvme.CNTLIDMax {
					cm = id
				}
				q, err := host.DialQueue(testContext(t), r.transport(w), tc.qid, 32, cm)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				o := w.hostOptions()
				op := host.ConnectCommand(tc.qid, 32, &o, tc.cntlid)
				tc.alter(op)
				tc.want.retry = false
				cqe, err := q.Do(testContext(t), op)
				want := tc.want
				if err == nil && cqe.Status()&nvme.DNR == 0 {
					want.retry = true // both are right; what must not be retried is tested by the lab
				}
				if !want.accepts(&cqe, err) {
					t.Errorf("got %v, error %v; want %v", cqe.Status(), err, tc.want.codes)
				}
				ip := nvme.InvalidParameter(cqe.DW0())
				if c := cqe.Status().Code(); tc.ipo >= 0 && (c == nvme.ConnectInvalidParameters || c == nvme.ConnectInvalidHost) &&
					(int(ip.IPO()) != tc.ipo || ip.InData() != tc.inData) {
					t.Errorf("names offset %d, in data %t; want %d, %t", ip.IPO(), ip.InData(), tc.ipo, tc.inData)
				}
				p.unharmed(t)
				if err := p.q.Flush(testContext(t), 1); err != nil {
					t.Fatalf("the queue that was there: %v", err)
				}
			})
		}
	})
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// TestBeforeConnect sends commands on connections without a controller (F01).
func TestBeforeConnect(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		for _, code := range []nvme.Opcode{nvme.AdminIdentify, nvme.AdminKeepAlive, nvme.AdminAsyncEventReq, nvme.AdminAbort, 0xC0} {
			q, err := host.DialQueue(testContext(t), r.transport(w), 0, 32, 0)
			r.must(err)
			op := new(host.Op)
			op.SQE.SetOpcode(code)
			cqe, err := q.Do(testContext(t), op)
			if !(outcome{codes: []nvme.Status{nvme.CommandSequenceError}, ends: true}).accepts(&cqe, err) {
				t.Errorf("opcode %#x: %v, %v", code, cqe.Status(), err)
			}
			r.must(q.Close())
		}
	})
}

// TestIOBeforeEnable connects an I/O queue to a controller that is not enabled (F14).
func TestIOBeforeEnable(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c, err := host.Dial(testContext(t), r.transport(w), w.hostOptions())
		r.must(err)
		defer c.Close()
		var ce *host.ConnectError
		if _, err := c.OpenQueue(testContext(t), 1, 32); !errors.As(err, &ce) {
			t.Errorf("got %v", err)
		}
		op := new(host.Op)
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.Identify().Set(nvme.CNSController, 0, 0)
		op.Data = make([]byte, 4096)
		if cqe, err := c.Admin(testContext(t), op); err != nil || cqe.Status().OK() {
			t.Errorf("identify before enable: %v, %v", cqe.Status(), err)
		}
		if err := c.Enable(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
