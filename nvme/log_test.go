package nvme

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestSupportedPages(t *testing.T) {
	var p SupportedPages
	p.Add(LogSMART, LogDiscovery)
	b := Append(nil, &p)
	testutil.True(t, bytes.Equal(b, hexBytes(t, SupportedPagesSize, "8:01 448:01")) &&
		p.Has(LogSMART) && !p.Has(LogANA), "bits")
}

func TestFeatureEffects(t *testing.T) {
	var l FeatureEffectsLog
	l[FeatureNumberOfQueues] = FeatureSupported | FeatureScopeController
	l[FeatureWriteProtect] = FeatureSupported | FeatureScopeNamespace
	b := Append(nil, &l)
	testutil.True(t, bytes.Equal(b, hexBytes(t, FeatureEffectsSize, "28:01002000 528:01001000")),
		"bits")
}

func TestUint128Sum(t *testing.T) {
	low, high := Uint128{0: 0xFF, 1: 0xFF, 2: 0xFF, 3: 0xFF, 4: 0xFF, 5: 0xFF, 6: 0xFF, 7: 0xFF},
		Uint128{8: 1}
	testutil.Equal(t, low.Add(MakeUint128(1)), high, "carry")
	testutil.Equal(t, low.Add(MakeUint128(2)).Add(high), (Uint128{0: 1, 8: 2}), "")
	for _, pair := range [][2]Uint128{
		{low, high},
		{MakeUint128(5), MakeUint128(256)},
		{high, high.Add(MakeUint128(1))},
		{low, low},
	} {
		if a, b := pair[0].Max(pair[1]), pair[1].Max(pair[0]); a != pair[1] || b != pair[1] {
			t.Errorf("the larger of %x: %x, %x", pair, a, b)
		}
	}
}

func TestUint128(t *testing.T) {
	u := MakeUint128(0x0102030405060708)
	v, ok := u.Uint64()
	testutil.True(t, v == 0x0102030405060708 && ok && u[0] == 8, "%v", u)
	if u[8] = 1; true {
		_, ok := u.Uint64()
		testutil.True(t, !ok, "overflow is not told")
	}
}

func TestDiscovery(t *testing.T) {
	e := DiscoveryEntry{
		TRTYPE: TransportRDMA, ADRFAM: AddressIPv4, SUBTYPE: SubsystemNVM,
		TREQ: TREQNotRequired | TREQNoFlowControl, PORTID: 1,
		CNTLID: CNTLIDDynamic, ASQSZ: 32, EFLAGS: EFLAGSPersistent,
	}
	e.SetAddress("10.0.0.1", "4420")
	e.SetRDMA(RDMAProviderRoCEv2, 0xFFFF)
	PutNQN(&e.SUBNQN, "nqn.x")
	b := Append(nil, &e)
	want := hexBytes(t, DiscoveryEntrySize,
		"0:01010206 4:0100ffff 8:2000 10:0200 256:6e716e2e78 768:010401 776:ffff")
	PutText(want[32:64], "4420")
	PutText(want[512:768], "10.0.0.1")
	testutil.True(t, bytes.Equal(b, want), "got % x", b)
	e.SetTCP(TCPTLS13)
	testutil.True(t, e.TCPSecurity() == TCPTLS13 && e.TSAS[8] == 0, "TCP")
}

func TestANALog(t *testing.T) {
	groups := []ANAGroup{
		{ANADescriptor{AGID: 1, CHGC: 2, ANAS: ANAStateNonOptimized}, []uint32{3, 5}},
		{ANADescriptor{AGID: 128, CHGC: 3, ANAS: ANAStateChange}, nil},
	}
	b := AppendANALog(nil, 3, groups)
	want := hexBytes(t, 16+32+8+32,
		"0:03 8:02 16:01 20:02 24:02 32:02 48:03 52:05 56:80 64:03 72:0f")
	testutil.True(t, bytes.Equal(b, want), "%x", b)
}
