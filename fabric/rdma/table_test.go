package rdma

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTable: IDs are not reused when numbers are.
func TestTable(t *testing.T) {
	var tab table[int]
	vs := [3]int{}
	a, b := tab.add(&vs[0]), tab.add(&vs[1])
	for kind := range workData {
		testutil.True(t, tab.find(workID(kind, a, 0xFFFF)) == &vs[0] &&
			tab.find(workID(kind, b, 1)) == &vs[1], "not found")
	}
	tab.remove(a)
	testutil.True(t, tab.find(a) == nil && tab.len() == 1, "found although it was removed")
	c := tab.add(&vs[2])
	testutil.True(t, uint16(c>>16) == uint16(a>>16) && tab.find(a) == nil && tab.find(c) == &vs[2],
		"IDs %#x and %#x of one number", a, c)
	for v := range tab.all() { // elements may be removed in the loop
		tab.remove(b)
		testutil.True(t, v != &vs[1], "yielded although it was removed")
	}
	tab.remove(c)
	tab.entries[0].gen = genMask // the generation wraps
	d := tab.add(&vs[0])
	testutil.True(t, d>>56 == 0 && tab.find(d) == &vs[0], "ID %#x", d)
}
