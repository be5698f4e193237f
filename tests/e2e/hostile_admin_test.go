package e2e

import (
	"math"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

var (
	badField  = refused(nvme.InvalidField)
	badBuffer = refused(nvme.DataSGLLengthInvalid, nvme.InvalidField)
)

func identifyOp(cns nvme.CNS, nsid uint32, n int) func(*attacker, *host.Op) {
	return func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.SetNSID(nsid)
		op.SQE.Identify().Set(cns, 0, 0)
		op.Data = make([]byte, n)
	}
}

func logOp(lid nvme.LID, nsid uint32, length, offset uint64, n int) func(*attacker, *host.Op) {
	return func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.AdminGetLogPage)
		op.SQE.SetNSID(nsid)
		op.SQE.GetLog().Set(lid, length, offset, 0, false)
		op.Data = make([]byte, n)
	}
}

func featureOp(code nvme.Opcode, cdw10, cdw11 uint32, n int) func(*attacker, *host.Op) {
	return func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(code)
		op.SQE.SetCDW(10, cdw10)
		op.SQE.SetCDW(11, cdw11)
		op.Data = make([]byte, n)
	}
}

func propertyOp(typ nvme.FabricsType, off nvme.PropertyOffset, attrib byte,
	v uint64) func(*attacker,
	*host.Op) {
	return func(_ *attacker, op *host.Op) {
		op.SQE.Property().Set(typ, off, v)
		op.SQE[40] = attrib
	}
}

var adminAttacks = []attack{
	{name: "M02 unknown CNS", op: identifyOp(0xFE, 0, 4096), want: badField},
	{name: "M02 unknown command set", op: func(a *attacker, op *host.Op) {
		identifyOp(nvme.CNSCommandSetController, 0, 4096)(a, op)
		op.SQE.Identify().Set(nvme.CNSCommandSetController, 0, 9)
	}, want: badField},
	{name: "M03 namespace 0", op: identifyOp(nvme.CNSNamespace, 0, 4096), want: noNamespace},
	{
		name: "M03 unknown namespace", op: identifyOp(nvme.CNSNamespace, 0x7FFFFFFF, 4096),
		want: noNamespace,
	},
	{
		name: "M03 descriptors of an unknown namespace",
		op:   identifyOp(nvme.CNSDescriptors, 77, 4096),
		want: badField,
	},
	{
		name: "M04 list from FFFFFFFEh", op: identifyOp(nvme.CNSActiveNamespaces, 0xFFFFFFFE, 4096),
		want: noNamespace,
	},
	{
		name: "M04 list from FFFFFFFFh", op: identifyOp(nvme.CNSActiveNamespaces, 0xFFFFFFFF, 4096),
		want: noNamespace,
	},
	{name: "M05 512 bytes", op: identifyOp(nvme.CNSController, 0, 512), want: badBuffer},
	{name: "M05 nothing", op: identifyOp(nvme.CNSController, 0, 0), want: badBuffer},
	{
		name: "M06 unknown log", op: logOp(0xEE, nvme.NSIDAll, 512, 0, 512),
		want: refused(nvme.InvalidLogPage),
	},
	{
		name: "M07 16 GiB of log", op: logOp(nvme.LogSMART, nvme.NSIDAll, 16<<30, 0, 512),
		want: badBuffer,
	},
	{
		name: "M07 more than the buffer", op: logOp(nvme.LogSMART, nvme.NSIDAll, 516, 0, 512),
		want: badBuffer,
	},
	{name: "M07 odd offset", op: logOp(nvme.LogSMART, nvme.NSIDAll, 4, 3, 4), want: badField},
	{
		name: "M07 offset at 2^64-4",
		op:   logOp(nvme.LogSMART, nvme.NSIDAll, 512, math.MaxUint64-3, 512), want: badField,
	},
	{
		name: "M07 offset past the end", op: logOp(nvme.LogSMART, nvme.NSIDAll, 4, 516, 4),
		want: badField,
	},
	{
		name: "M08 log of an unknown namespace", op: logOp(nvme.LogSMART, 77, 512, 0, 512),
		want: badField,
	},
	{
		name: "M09 FFFFh queues",
		op:   featureOp(nvme.AdminSetFeatures, uint32(nvme.FeatureNumberOfQueues), 0xFFFFFFFF, 0),
		want: badField,
	},
	{
		name: "M09 queues while some exist",
		op:   featureOp(nvme.AdminSetFeatures, uint32(nvme.FeatureNumberOfQueues), 0x10001, 0),
		want: refused(nvme.CommandSequenceError, nvme.Success),
	},
	{name: "M10 unknown feature", op: featureOp(nvme.AdminGetFeatures, 0xEE, 0, 0), want: badField},
	{
		name: "M10 set an unknown feature", op: featureOp(nvme.AdminSetFeatures, 0xEE, 0, 0),
		want: badField,
	},
	{
		name: "M10 reserved select",
		op:   featureOp(nvme.AdminGetFeatures, uint32(nvme.FeatureNumberOfQueues)|7<<8, 0, 0),
		want: badField,
	},
	{
		name: "M10 save",
		op:   featureOp(nvme.AdminSetFeatures, uint32(nvme.FeatureAsyncEventConfig)|1<<31, 0, 0),
		want: refused(nvme.FeatureNotSaveable),
	},
	{name: "M11 set the host identifier", op: func(a *attacker, op *host.Op) {
		featureOp(nvme.AdminSetFeatures, uint32(nvme.FeatureHostIdentifier), 1, 16)(a, op)
	}, want: refused(nvme.CommandSequenceError)},
	{
		name: "M13 keep alive without a timer",
		op:   func(_ *attacker, op *host.Op) { op.SQE.SetOpcode(nvme.AdminKeepAlive) },
		want: refused(nvme.KATOInvalid),
	},
}

var fabricsAttacks = []attack{
	{name: "F16 second Connect", op: func(a *attacker, op *host.Op) {
		o := a.v.hostOptions()
		*op = *host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
	}, want: refused(nvme.CommandSequenceError)},
	{
		name: "G01 unknown property", op: propertyOp(nvme.FabricsPropertyGet, 0x24, 0, 0),
		want: badField,
	},
	{
		name: "G01 CAP in 4 bytes", op: propertyOp(nvme.FabricsPropertyGet, nvme.PropertyCAP, 0, 0),
		want: badField,
	},
	{
		name: "G01 VS in 8 bytes", op: propertyOp(nvme.FabricsPropertyGet, nvme.PropertyVS, 1, 0),
		want: badField,
	},
	{
		name: "G01 reserved size", op: propertyOp(nvme.FabricsPropertyGet, nvme.PropertyVS, 2, 0),
		want: badField,
	},
	{name: "G01 unaligned", op: propertyOp(nvme.FabricsPropertyGet, 0x15, 0, 0), want: badField},
	{
		name: "G02 set CAP", op: propertyOp(nvme.FabricsPropertySet, nvme.PropertyCAP, 1, 1),
		want: refused(nvme.InvalidField, nvme.ConnectInvalidParameters),
	},
	{
		name: "G02 set CSTS", op: propertyOp(nvme.FabricsPropertySet, nvme.PropertyCSTS, 0, 1),
		want: refused(nvme.InvalidField, nvme.ConnectInvalidParameters),
	},
	{
		name: "G03 SHN 11b",
		op:   propertyOp(nvme.FabricsPropertySet, nvme.PropertyCC, 0, uint64(nvme.CCLinux|3<<14)),
		want: badField,
	},
	{name: "G06 disconnect of the admin queue", op: func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.FabricsOpcode)
		op.SQE[4] = byte(nvme.FabricsDisconnect)
	}, want: refused(nvme.InvalidOpcode, nvme.InvalidField, nvme.InvalidQueueIdentifier,
		nvme.InvalidQueueType)},
	{name: "A02 security send", op: func(_ *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.FabricsOpcode)
		op.SQE[4] = byte(nvme.FabricsAuthSend)
		op.Data = make([]byte, 512)
	}, want: refused(nvme.InvalidOpcode, nvme.InvalidField, nvme.CommandSequenceError)},
	{name: "S02 fused admin", op: func(a *attacker, op *host.Op) {
		op.SQE.SetOpcode(nvme.AdminGetFeatures)
		op.SQE.SetCDW(10, uint32(nvme.FeatureNumberOfQueues))
		op.Raw = true
		op.SQE.SetFlags(1<<6 | 1)
		if a.v.isRDMA {
			op.SQE.SGL1().SetKeyed(0, 0, 0, 0)
		} else {
			op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 0)
		}
	}, want: badField},
}

// TestHostileAdmin sends admin and Fabrics commands that must be refused.
func TestHostileAdmin(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		a := newAttacker(h, v)
		a.run(t, true, adminAttacks)
		a.run(t, true, fabricsAttacks)
		t.Run("M01 M15 M16 every other opcode", func(t *testing.T) {
			a.refuses(t, a.c.Admin, nvme.AdminGetLogPage, nvme.AdminIdentify, nvme.AdminAbort,
				nvme.AdminSetFeatures, nvme.AdminGetFeatures,
				nvme.AdminAsyncEventReq, nvme.AdminSelfTest, nvme.AdminKeepAlive,
				nvme.FabricsOpcode)
		})
		t.Run("unknown Fabrics types", func(t *testing.T) {
			for typ := range 256 {
				switch nvme.FabricsType(typ) {
				case nvme.FabricsPropertySet, nvme.FabricsConnect, nvme.FabricsPropertyGet,
					nvme.FabricsAuthSend, nvme.FabricsAuthReceive, nvme.FabricsDisconnect:
					continue
				}
				op := new(host.Op)
				op.SQE.SetOpcode(nvme.FabricsOpcode)
				op.SQE[4] = byte(typ)
				if cqe, err := a.c.Admin(harness.Context(t), op); err != nil ||
					cqe.Status().Code() != nvme.InvalidOpcode {
					t.Fatalf("type %#x: %v, %v", typ, cqe.Status(), err)
				}
			}
		})
	})
}
