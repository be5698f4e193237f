package nvme

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestNamespaceList(t *testing.T) {
	many := make([]uint32, 1500)
	for i := range many {
		many[i] = uint32(i + 1)
	}
	for _, tc := range []struct{ in, want []uint32 }{
		{nil, nil},
		{[]uint32{1, 7, 0xFFFFFFFD}, []uint32{1, 7, 0xFFFFFFFD}},
		{many, many[:1024]},
	} {
		b := AppendNamespaceList([]byte{9}, tc.in)
		testutil.MustEqual(t, len(b), 4097, "bytes")
		want := make([]byte, IdentifyDataSize)
		for i, id := range tc.want {
			binary.LittleEndian.PutUint32(want[4*i:], id)
		}
		testutil.True(t, bytes.Equal(b[1:], want), "%d ids: % x", len(tc.want), b)
	}
}

func TestNamespaceIDs(t *testing.T) {
	uuid := bytes.Repeat([]byte{0xAB}, 16)
	b := AppendNamespaceIDs(nil, NamespaceID{IDTypeUUID, uuid},
		NamespaceID{IDTypeEUI64, []byte("12345678")}, NamespaceID{IDTypeCSI, []byte{0}})
	want := hexBytes(t, IdentifyDataSize,
		"0:03100000abababababababababababababababab 20:01080000 24:3132333435363738 32:04010000")
	if !bytes.Equal(b, want) {
		t.Fatalf("% x", b[:48])
	}
	ids, err := ParseNamespaceIDs(b)
	testutil.MustTrue(t, err == nil && len(ids) == 3 && ids[0].Type == IDTypeUUID &&
		bytes.Equal(ids[0].ID, uuid) && ids[2].Type == IDTypeCSI, "%v, %v", ids, err)
	for name, bad := range map[string][]byte{
		"length of a UUID": {3, 15, 0, 0, 1}, "reserved": {4, 1, 1, 0, 0},
		"cut": {2, 16, 0, 0, 1, 2},
	} {
		testutil.True(t, testutil.Err(ParseNamespaceIDs(bad)) != nil, "%s: accepted", name)
	}
}

func FuzzNamespaceIDs(f *testing.F) {
	f.Add([]byte{1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		ids, _ := ParseNamespaceIDs(b)
		n := 0
		for _, id := range ids {
			n += 4 + len(id.ID)
		}
		testutil.MustTrue(t, n <= len(b), "%d bytes of descriptors in %d", n, len(b))
	})
}

func TestIdentifyNamespaceFormat(t *testing.T) {
	n := IdentifyNamespace{FLBAS: 0x40 | 0x10 | 3}
	n.LBAF[0x23] = LBAFormat{LBADS: 12}
	testutil.Equal(t, n.Format().LBADS, 12, "format index is not bits 6:5 and 3:0")
}
