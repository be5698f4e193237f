package nvme

import (
	"encoding/binary"
	"maps"
	"reflect"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// offsetsOf returns the offsets at which binary.Append puts the named fields.
func offsetsOf(t reflect.Type) offsets {
	m := offsets{}
	off := 0
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name != "_" {
			m[f.Name] = off
		}
		off += binary.Size(reflect.Zero(f.Type).Interface())
	}
	return m
}

// records are the sizes and the byte offsets of the figures of the specification; they agree with
// struct nvme_id_ctrl and its siblings of the Linux header include/linux/nvme.h and of libnvme's
// types.h. Arrays have no offsets.
var records = []recordCase{
	record[IdentifyController](4096, offsets{
		"VID": 0, "SSVID": 2, "SN": 4, "MN": 24, "FR": 64, "RAB": 72, "IEEE": 73, "CMIC": 76,
		"MDTS": 77, "CNTLID": 78,
		"VER": 80, "RTD3R": 84, "RTD3E": 88, "OAES": 92, "CTRATT": 96, "RRLS": 100,
		"CNTRLTYPE": 111, "FGUID": 112,
		"CRDT": 128, "NVMSR": 253, "VWCI": 254, "MEC": 255, "OACS": 256, "ACL": 258,
		"AERL": 259, "FRMW": 260, "LPA": 261,
		"ELPE": 262, "NPSS": 263, "AVSCC": 264, "APSTA": 265, "WCTEMP": 266, "CCTEMP": 268,
		"MTFA": 270, "HMPRE": 272,
		"HMMIN": 276, "TNVMCAP": 280, "UNVMCAP": 296, "RPMBS": 312, "EDSTT": 316, "DSTO": 318,
		"FWUG": 319, "KAS": 320,
		"HCTMA": 322, "MNTMT": 324, "MXTMT": 326, "SANICAP": 328, "HMMINDS": 332, "HMMAXD": 336,
		"NSETIDMAX": 338,
		"ENDGIDMAX": 340, "ANATT": 342, "ANACAP": 343, "ANAGRPMAX": 344, "NANAGRPID": 348,
		"PELS": 352, "DomainID": 356,
		"MEGCAP": 368, "CQT": 386, "SQES": 512, "CQES": 513, "MAXCMD": 514, "NN": 516,
		"ONCS": 520, "FUSES": 522, "FNA": 524,
		"VWC": 525, "AWUN": 526, "AWUPF": 528, "ICSVSCC": 530, "NWPC": 531, "ACWU": 532,
		"CDFS": 534, "SGLS": 536,
		"MNAN": 540, "MAXDNA": 544, "MAXCNA": 560, "SUBNQN": 768, "IOCCSZ": 1792,
		"IORCSZ": 1796, "ICDOFF": 1800,
		"FCATT": 1802, "MSDBD": 1803, "OFCS": 1804, "DCTYPE": 1806, "PSD": 2048, "VS": 3072,
	}),
	record[IdentifyNamespace](4096, offsets{
		"NSZE": 0, "NCAP": 8, "NUSE": 16, "NSFEAT": 24, "NLBAF": 25, "FLBAS": 26, "MC": 27,
		"DPC": 28, "DPS": 29, "NMIC": 30,
		"RESCAP": 31, "FPI": 32, "DLFEAT": 33, "NAWUN": 34, "NAWUPF": 36, "NACWU": 38,
		"NABSN": 40, "NABO": 42, "NABSPF": 44,
		"NOIOB": 46, "NVMCAP": 48, "NPWG": 64, "NPWA": 66, "NPDG": 68, "NPDA": 70, "NOWS": 72,
		"MSSRL": 74, "MCL": 76,
		"MSRC": 80, "KPIOS": 81, "NULBAF": 82, "ANAGRPID": 92, "NSATTR": 99, "NVMSETID": 100,
		"ENDGID": 102, "NGUID": 104,
		"EUI64": 120, "LBAF": 128, "VS": 384,
	}),
	record[IdentifyNamespaceIndependent](4096, offsets{
		"NSFEAT": 0, "NMIC": 1, "RESCAP": 2, "FPI": 3, "ANAGRPID": 4, "NSATTR": 8,
		"NVMSETID": 10, "ENDGID": 12, "NSTAT": 14,
	}),
	record[ConnectData](ConnectDataSize, offsets{
		"HostID": 0, "CNTLID": 16, "SUBNQN": 256, "HOSTNQN": 512,
	}),
	record[SupportedPages](SupportedPagesSize, nil),
	record[ANAHeader](ANAHeaderSize, offsets{"CHGC": 0, "NAGD": 8}),
	record[ANADescriptor](ANADescriptorSize, offsets{"AGID": 0, "NNV": 4, "CHGC": 8, "ANAS": 16}),
	record[ErrorLogEntry](ErrorLogEntrySize, offsets{
		"Count": 0, "SQID": 8, "CID": 10, "Status": 12, "Location": 14, "LBA": 16, "NSID": 24,
		"Vendor": 28, "TRTYPE": 29,
		"CSI": 30, "Opcode": 31, "CommandSpecific": 32, "TransportSpecific": 40, "Version": 63,
	}),
	record[SMARTLog](SMARTLogSize, offsets{
		"CriticalWarning": 0, "Temperature": 1, "AvailableSpare": 3, "SpareThreshold": 4,
		"PercentageUsed":    5,
		"EnduranceWarnings": 6, "DataUnitsRead": 32, "DataUnitsWritten": 48, "HostReads": 64,
		"HostWrites": 80,
		"BusyTime":   96, "PowerCycles": 112, "PowerOnHours": 128, "UnsafeShutdowns": 144,
		"MediaErrors":     160,
		"ErrorLogEntries": 176, "WarningTempTime": 192, "CriticalTempTime": 196,
		"TemperatureSensor":  200,
		"ThermalTransitions": 216, "ThermalTime": 224,
	}),
	record[FirmwareLog](FirmwareLogSize, offsets{"AFI": 0, "FRS": 8}),
	record[EffectsLog](EffectsLogSize, offsets{"Admin": 0, "IO": 1024}),
	record[EnduranceGroupLog](EnduranceGroupLogSize, offsets{
		"CriticalWarning": 0, "EGFEAT": 1, "AvailableSpare": 3, "SpareThreshold": 4,
		"PercentageUsed": 5, "DomainID": 6, "Estimate": 32, "DataUnitsRead": 48,
		"DataUnitsWritten": 64, "MediaWritten": 80, "HostReads": 96, "HostWrites": 112,
		"MediaErrors": 128, "ErrorLogEntries": 144, "Capacity": 160, "Unallocated": 176,
	}),
	record[RotationalMediaLog](RotationalMediaLogSize, offsets{
		"ENDGID": 0, "NUMA": 2, "NRS": 4, "SPINC": 8, "FSPINC": 12, "LDC": 16, "FLDC": 20,
	}),
	record[FeatureEffectsLog](FeatureEffectsSize, nil),
	record[SelfTestLog](SelfTestLogSize, offsets{"Operation": 0, "Completion": 1, "Results": 4}),
	record[SelfTestResult](28, offsets{
		"DSTS": 0, "SEGN": 1, "VDINFO": 2, "POH": 4, "NSID": 12, "FLBA": 16, "SCT": 24,
		"SC": 25, "VS": 26,
	}),
	record[TelemetryHeader](TelemetryBlock, offsets{
		"LID": 0, "IEEE": 5, "Last": 8, "Last4": 16, "THS": 380, "THDGN": 381, "TCDA": 382,
		"TCDGN": 383, "RID": 384,
	}),
	record[ReservationStatus](ReservationStatusSize, offsets{
		"GEN": 0, "RTYPE": 4, "REGCTL": 5, "PTPLS": 9,
	}),
	record[RegisteredController](RegisteredControllerSize, offsets{
		"CNTLID": 0, "RCSTS": 2, "RKEY": 8, "HostID": 16,
	}),
	record[ReservationLog](ReservationLogSize, offsets{
		"Count": 0, "Type": 8, "Available": 9, "NSID": 12,
	}),
	record[DiscoveryHeader](DiscoveryHeaderSize, offsets{"GENCTR": 0, "NUMREC": 8, "RECFMT": 16}),
	record[DiscoveryEntry](DiscoveryEntrySize, offsets{
		"TRTYPE": 0, "ADRFAM": 1, "SUBTYPE": 2, "TREQ": 3, "PORTID": 4, "CNTLID": 6, "ASQSZ": 8,
		"EFLAGS": 10, "TRSVCID": 32,
		"SUBNQN": 256, "TRADDR": 512, "TSAS": 768,
	}),
}

func TestOffsets(t *testing.T) {
	compare := func(typ reflect.Type, want offsets) {
		got := offsetsOf(typ)
		testutil.True(t, maps.Equal(got, want), "%v:\n got %v\nwant %v", typ, got, want)
	}
	for _, r := range records {
		if r.typ.Kind() == reflect.Struct {
			compare(r.typ, r.fields)
		}
	}
	compare(reflect.TypeFor[LBAFormat](), offsets{"MS": 0, "LBADS": 2, "RP": 3})
	compare(reflect.TypeFor[ConnectData](), offsets{
		"HostID": ConnectDataOffsetHostID, "CNTLID": ConnectDataOffsetCNTLID,
		"SUBNQN":  ConnectDataOffsetSUBNQN,
		"HOSTNQN": ConnectDataOffsetHOSTNQN,
	})
}

func TestReservedIsReported(t *testing.T) {
	b := Append(nil, &IdentifyController{VID: 0x1234, NN: 5})
	b[105] = 1
	c, err := Parse[IdentifyController](b)
	testutil.MustTrue(t, err != nil && c.VID == 0x1234 && c.NN == 5, "%+v, %v", c.VID, err)
}

func TestText(t *testing.T) {
	var b [8]byte
	for _, tc := range []struct{ in, wire, out string }{
		{"abc", "abc     ", "abc"}, {"", "        ", ""}, {"0123456789", "01234567", "01234567"},
	} {
		PutText(b[:], tc.in)
		if string(b[:]) != tc.wire || Text(b[:]) != tc.out {
			t.Errorf("%q: %q, %q", tc.in, b, Text(b[:]))
		}
	}
	testutil.Equal(t, Text([]byte("x\x00\x00")), "x", "NUL padding stays")
}
