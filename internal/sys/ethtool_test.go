package sys

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestEthtoolHeaders compares this package with linux/ethtool.h.
func TestEthtoolHeaders(t *testing.T) {
	testutil.HeadersAgree(t, []string{"linux/types.h", "linux/ethtool.h"},
		map[string]int{
			"ETHTOOL_GSTRINGS": ethtoolGSTRINGS, "ETHTOOL_GRXFH": ethtoolGRXFH,
			"ETHTOOL_GSSET_INFO": ethtoolGSSETINFO, "ETHTOOL_GFEATURES": ethtoolGFEATURES,
			"ETH_SS_FEATURES": ethSSFeatures, "ETH_GSTRING_LEN": ethGStringLen,
			"UDP_V4_FLOW": udpV4Flow, "RXH_L4_B_0_1 | RXH_L4_B_2_3": rxhPorts,
			"sizeof(struct ethtool_get_features_block)":           featureBlock,
			"offsetof(struct ethtool_get_features_block, active)": 8,
			"offsetof(struct ethtool_gfeatures, features)":        featuresHeader,
			"offsetof(struct ethtool_gstrings, data)":             stringsHeader,
			"offsetof(struct ethtool_sset_info, sset_mask)":       8,
			"offsetof(struct ethtool_sset_info, data)":            16,
			"offsetof(struct ethtool_rxnfc, data)":                8,
		})
}

// TestFeaturesOff: the loopback interface has the features of Linux. It always has checksums, so
// that these are never off, and it has no receive queues to choose from.
func TestFeaturesOff(t *testing.T) {
	off := testutil.Value(FeaturesOff("lo", "tx-checksum-ip-generic", "no such feature"))(t)
	testutil.Equal(t, len(off), 0, "features that are off: %v", off)
	testutil.Value(FeaturesOff("lo", "rx-gro"))(t)
	_, err := UDPPortsHashed("lo")
	testutil.Fails(t, err, "not supported", "hash of the loopback interface")
	for _, name := range []string{"none0", "name-that-is-too-long"} {
		_, err := FeaturesOff(name)
		testutil.Fails(t, err, name, "features")
	}
}
