package hostgo

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestLists describes data by lists with each number of data blocks that the target supports, for
// reads and writes, and with one more.
func TestLists(t *testing.T) {
	tr, o := testTarget(t)
	c := connect(t, tr, o, 4)
	most := int(c.Identity().MSDBD)
	testutil.MustTrue(t, most >= 2, "the target supports %d data blocks", most)
	q := open(t, c, 1, 32)
	const largest = 256 << 10
	buf := testutil.Value(c.Map(2 * largest))(t)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	do := func(op *host.Op, blocks int) nvme.Status {
		t.Helper()
		op.Blocks = blocks
		cqe := testutil.Value(q.Do(ctx, op))(t)
		return cqe.Status()
	}
	random := rand.NewChaCha8([32]byte{1})
	lists := 0
	for blocks := 2; blocks <= most; blocks++ {
		for _, size := range []int{block, 4096, 64<<10 + block, largest} {
			data, back := buf[:size], buf[largest:largest+size]
			_, _ = random.Read(data)
			clear(back)
			var op host.Op
			op.Write(1, 3, uint32(size/block), data, 0)
			testutil.MustEqual(t, do(&op, blocks), nvme.Success, "write of %d bytes in %d blocks",
				size, blocks)
			op.Read(1, 3, uint32(size/block), back)
			if st := do(&op, 1+(blocks+size/block)%most); !st.OK() { // another number of blocks
				t.Fatalf("read of %d bytes: %v", size, st)
			}
			testutil.MustTrue(t, bytes.Equal(data, back), "%d bytes in %d blocks read back differ",
				size, blocks)
			lists++
		}
	}
	var op host.Op
	op.Read(1, 3, 64, buf[:64*block])
	if st := do(&op, most+1); st.Code() != nvme.InvalidSGLCount {
		t.Errorf("%d data blocks: %v, want Invalid Number of SGL Descriptors", most+1, st)
	}
	t.Logf("%d commands with lists, the longest of %d blocks", 2*lists, most)
}
