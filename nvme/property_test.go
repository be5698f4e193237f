package nvme

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestProperties(t *testing.T) {
	c := MakeCAP(128, 30, CAPCSSNVM|CAPCSSIOSets|CAPCRMSMedia)
	if uint64(c) != 0x0800_0820_1E01_007F { // MQES 127, CQR, TO 30, CSS bits 37 and 43, CRMS bit 59
		t.Errorf("CAP %#x", uint64(c))
	}
	if c.MQES() != 127 || c.TO() != 30 || c.MPSMin() != 4096 {
		t.Errorf("CAP fields: %d %d %d", c.MQES(), c.TO(), c.MPSMin())
	}
	c = 1 << 48
	testutil.True(t, c.MPSMin() == 8192, "smallest page size %d", c.MPSMin())
	testutil.True(t, PropertyCAP.Size() == 8 && PropertyCC.Size() == 4, "sizes")
	testutil.True(t, Version21 == 0x20100 && Version21.String() == "2.1.0", "version %s", Version21)
	testutil.True(t, CCLinux == 0x460001 && CCLinux.EN() && CCLinux.IOSQES() == 6 &&
		CCLinux.IOCQES() == 4 && CCLinux.Reserved() == 0, "CC %#x", uint32(CCLinux))
	cc := CC(0xFF<<24 | 3<<14 | 5<<11 | 9<<7 | 6<<4 | 0xE)
	testutil.True(t, !cc.EN() && cc.SHN() == 3 && cc.AMS() == 5 && cc.MPS() == 9 &&
		cc.CSS() == CSSAllIO && cc.CRIME() && cc.Reserved() == 0xFE00000E, "CC fields of %#x",
		uint32(cc))
	s := CSTSReady | CSTSShutdownComplete
	testutil.True(t, s.RDY() && !s.CFS() && s.SHST() == 2, "CSTS")
	testutil.Equal(t, CSTSFatal|CSTSShutdownOccurring|CSTSNSSRO, 0x16, "CSTS bits")
	r := MakeCRTO(5, 7)
	testutil.True(t, r == 0x70005, "CRTO %#x", uint32(r))
}

func TestConnectResult(t *testing.T) {
	r := MakeConnectResult(7)
	testutil.True(t, r == 7 && r.CNTLID() == 7, "%#x", uint32(r))
	p := InvalidInData(ConnectDataOffsetSUBNQN)
	testutil.True(t, p == 0x10100 && p.IPO() == 256 && p.InData() &&
		p.String() == "byte 256 of the data", "%#x: %v", uint32(p), p)
	p = InvalidInCommand(ConnectOffsetSQSIZE)
	testutil.True(t, p == 44 && p.IPO() == 44 && !p.InData() &&
		p.String() == "byte 44 of the command", "%#x: %v", uint32(p), p)
	// The offsets in struct nvmf_connect_command.
	testutil.True(t, ConnectOffsetRECFMT == 40 && ConnectOffsetQID == 42 &&
		ConnectOffsetSQSIZE == 44 && ConnectOffsetCATTR == 46 && ConnectOffsetKATO == 48, "offsets")
}

func TestFeatureValues(t *testing.T) {
	n := MakeNumberOfQueues(65535)
	testutil.True(t, n == 0xFFFEFFFE && n.Submission() == 65535 && n.Completion() == 65535, "%#x",
		uint32(n))
	n = MakeNumberOfQueues(1)
	testutil.True(t, n == 0 && n.Submission() == 1, "%#x", uint32(n))
}

// TestAsyncEvents compares events with the values Linux hosts act on (udev sees the last one as
// 0x70f002).
func TestAsyncEvents(t *testing.T) {
	for _, tc := range []struct {
		e    AsyncEvent
		want uint32
	}{
		{AsyncNamespaceChanged, 0x040002},
		{AsyncDiscoveryChanged, 0x70F002},
		{AsyncPersistentError, 0x010300},
	} {
		testutil.True(t, uint32(tc.e) == tc.want && uint32(tc.e.LID()) == tc.want>>16,
			"%#x, want %#x", uint32(tc.e), tc.want)
	}
	testutil.Equal(t, EventNamespaceChanged|EventANAChanged|EventDiscoveryChanged, 0x80000900,
		"mask")
}
