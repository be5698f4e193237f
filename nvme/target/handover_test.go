package target

import (
	"bytes"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// TestInCapsuleDataIsCopied: a device gets a copy of data in the receive slots of a queue if its
// commands may be given up.
func TestInCapsuleDataIsCopied(t *testing.T) {
	dev := faultyDevice(t, 1<<20, 512)
	b := newBare(t, namespaces.Config{NSID: 1, Device: dev, Timeout: time.Second}, 32)
	arena := b.w.Reactors[0].Memory()
	b.h.memory = arena
	slot := bytes.Repeat([]byte{1}, 4096)
	send := func() {
		r := b.reqs[0]
		r.Reset()
		r.SQE = nvme.SQE{}
		r.SQE.SetOpcode(nvme.NVMWrite)
		r.SQE.SetFlags(psdtSGL << 6)
		r.SQE.SetNSID(1)
		r.SQE.RW().Set(0, 8, 0)
		r.HostLength, r.InCapsule = 4096, true
		b.h.Prepare([]*fabric.Request{r})
		r.Segs = append(r.Segs, mem.Segment{B: slot[:1000], Region: -1},
			mem.Segment{B: slot[1000:], Region: -1})
		b.h.Execute([]*fabric.Request{r})
	}
	free, done := arena.Available(), b.q.done
	send()
	testutil.MustTrue(t, b.q.done == done+1 && b.q.bad == 0 && arena.Available() == free,
		"%d done, %d failed, %d bytes taken", b.q.done-done, b.q.bad, free-arena.Available())
	dev.Hold(nil)
	send()
	b.w.Advance(3 * time.Second)
	testutil.MustTrue(t, b.q.done == done+2 && b.q.bad == 1, "%d done, %d failed", b.q.done-done,
		b.q.bad)
	clear(slot) // the next capsule
	dev.Release()
	b.w.Settle()
	testutil.True(t, arena.Available() == free, "%d bytes have not come back",
		free-arena.Available())
	c := backendtest.NewClient(t, dev, 4096)
	defer c.Close()
	got := c.Memory(0, 4096)
	c.MustDo(c.Read(0, got))
	testutil.True(t, bytes.Equal(got, bytes.Repeat([]byte{1}, 4096)),
		"the device wrote the data of a later capsule")
}

// TestCancelWithoutHandOver: a command that cannot be given up, because there is no memory for a
// copy of its in-capsule data, is canceled at least.
func TestCancelWithoutHandOver(t *testing.T) {
	b, dev, prepare := capsuleWrite(t)
	dev.HonorCancel()
	dev.Hold(nil)
	var all mem.Allocation
	b.h.memory.Alloc(&all, nil, b.h.memory.Max(nil))
	defer all.Free()
	r, done := prepare(), b.q.done
	b.h.Execute([]*fabric.Request{r})
	b.w.Advance(2 * time.Second)
	if b.q.done != done+1 || dev.Held() != 0 || r.CQE.Status() != nvme.AbortRequested {
		t.Errorf("%d done, the device has %d, %v", b.q.done-done, dev.Held(), r.CQE.Status())
	}
	dev.Release()
}
