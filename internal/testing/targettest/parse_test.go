package targettest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestParse: lists and headers are parsed, and short ones refused.
func TestParse(t *testing.T) {
	ids := []uint32{1, 7, 0xFFFFFFFD}
	b := nvme.AppendNamespaceList(nil, ids)
	got, err := ParseNamespaceList(b)
	testutil.True(t, err == nil && slices.Equal(got, ids), "%d, %v", got, err)
	testutil.Is(t, testutil.Err(ParseNamespaceList(b[1:])), nvme.ErrTruncated, "a short list")
	h := &nvme.DiscoveryHeader{GENCTR: 1, NUMREC: 2}
	header, err := ParseDiscoveryHeader(nvme.Append(nil, h)[:20])
	testutil.True(t, err == nil && *header == *h, "%+v, %v", header, err)
	// All but the fields may be missing.
	for size, want := range map[int]error{17: nvme.ErrTruncated, 18: nil} {
		testutil.Is(t, testutil.Err(ParseDiscoveryHeader(make([]byte, size))), want,
			"discovery header of %d bytes", size)
	}
}

func TestANALog(t *testing.T) {
	b := nvme.AppendANALog(nil, 3, []nvme.ANAGroup{
		{ANADescriptor: nvme.ANADescriptor{AGID: 1, CHGC: 2}, NSIDs: []uint32{3, 5}},
		{ANADescriptor: nvme.ANADescriptor{AGID: 128, CHGC: 3, ANAS: nvme.ANAStateChange}},
	})
	h, again, err := ParseANALog(append(b, 0xFF))
	testutil.True(t, err == nil && h.CHGC == 3 &&
		bytes.Equal(nvme.AppendANALog(nil, h.CHGC, again), b), "%+v %+v %v", h, again, err)
	for n := range b {
		if _, _, err := ParseANALog(b[:n:n]); err == nil {
			t.Errorf("%d bytes are a log", n)
		}
	}
}
