package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

func abortCommand(sqid, cid uint16) *fabrictest.Command {
	c := command(nvme.AdminAbort, 0, nil)
	c.SQE.Abort().Set(sqid, cid)
	return c
}

// capsuleWrite returns a queue, its device, and a function that prepares a write of 4 KiB. The
// in-capsule data lies in memory of the queue.
func capsuleWrite(t *testing.T) (b *bare, dev *backendtest.Faulty, prepare func() *fabric.Request) {
	dev = backendtest.NewFaulty(ramDeviceOpen(t, 1<<20, 512))
	closeLast(t, dev)
	b = newBare(t, namespaces.Config{NSID: 1, Device: dev, Timeout: time.Second}, 32)
	b.h.memory = b.w.Reactors[0].Memory()
	return b, dev, func() *fabric.Request {
		r := b.reqs[0]
		r.Reset()
		r.SQE = rw(nvme.NVMWrite, 1, 0, 8, nil).SQE
		r.HostLength, r.InCapsule = 4096, true
		b.h.Prepare([]*fabric.Request{r})
		r.Segs = append(r.Segs, mem.Segment{B: make([]byte, 4096)})
		return r
	}
}

// TestAbortFreesCapsule: the copy of in-capsule data is freed when its command is aborted before
// the device has it.
func TestAbortFreesCapsule(t *testing.T) {
	b, dev, prepare := capsuleWrite(t)
	free := b.h.memory.Available()
	dev.Full(true)
	r := prepare()
	b.h.Execute([]*fabric.Request{r})
	testutil.MustTrue(t, b.h.memory.Available() == free-4096, "%d bytes are copied",
		free-b.h.memory.Available())
	testutil.True(t, b.io.(*session).abort(r.SQE.CID()) && r.CQE.Status() == nvme.AbortRequested,
		"not aborted: %v", r.CQE.Status())
	dev.Full(false)
	n := b.h.memory.Available()
	testutil.True(t, n == free, "%d bytes have not come back", free-n)
}

// TestRefusedSubmitFreesCapsule: the copy is also freed if the namespace was removed while the data
// moved.
func TestRefusedSubmitFreesCapsule(t *testing.T) {
	b, _, prepare := capsuleWrite(t)
	free := b.h.memory.Available()
	r := prepare()
	gone, err := b.h.t.RemoveNamespace(testSub, 1)
	testutil.MustTrue(t, err == nil && untilGone(b.w, gone) == nil, "the namespace is not removed")
	b.h.Execute([]*fabric.Request{r})
	testutil.Equal(t, r.CQE.Status()&^nvme.More, inactiveNamespace, "")
	n := b.h.memory.Available()
	testutil.True(t, n == free, "%d bytes have not come back", free-n)
}
