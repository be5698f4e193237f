package target

import (
	"bytes"
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

// TestAbort: the commands that can be aborted, and the result of the Abort command (M14).
func TestAbort(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 1)
	result := func(c *fabrictest.Command, want uint32) {
		t.Helper()
		if r.ok(h.admin, c).CQE.DW0() != want {
			t.Errorf("result %d, want %d", c.CQE.DW0(), want)
		}
	}
	result(abortCommand(0, 12345), 1)
	result(abortCommand(1, 12345), 1)
	result(abortCommand(9, 1), 1)
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	result(abortCommand(0, aer.SQE.CID()), 0)
	testutil.Equal(t, aer.CQE.Status(), nvme.AbortRequested, "AER")

	dev.Hold(nil)
	held := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	result(abortCommand(1, held.SQE.CID()), 1) // the device works on it
	dev.Full(true)
	waiting := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	result(abortCommand(1, waiting.SQE.CID()), 0)
	testutil.True(t, waiting.Done && waiting.CQE.Status() == nvme.AbortRequested,
		"waiting command: %v %v", waiting.Done, waiting.CQE.Status())
	var many []*fabrictest.Command
	for range abortLimit + 1 {
		many = append(many, r.send(h.admin, abortCommand(1, 1)))
	}
	r.w.Settle()
	for i, c := range many {
		want := nvme.Success
		if i == abortLimit {
			want = nvme.AbortLimitExceeded
		}
		testutil.True(t, c.Done && c.CQE.Status().Code() == want, "abort %d: %v %v", i, c.Done,
			c.CQE.Status())
	}
	dev.Full(false)
	dev.Release()
	r.until("the read completes", func() bool { return held.Done })
	testutil.True(t, held.CQE.Status().OK(), "read: %v", held.CQE.Status())
}

// TestAbortCancels: a command in the device is canceled, if the device can, before the Abort
// command completes (Base section 5.1.1.2). Other commands stay.
func TestAbortCancels(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	dev.HonorCancel()
	r, h := joined(t, 2, 1, sub)
	q := h.io[0]
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	free := r.w.Reactors[1].Memory().Available()
	dev.Hold(nil)
	all := everyCommand()
	for _, c := range all {
		r.send(q, c)
	}
	stays := r.send(q, rw(nvme.NVMWrite, 1, 8, 1, bytes.Repeat([]byte{1}, 512)))
	r.until("the device has everything", func() bool { return dev.Held() == everyIOs+1 })
	for _, c := range all {
		abort := r.send(h.admin, abortCommand(1, c.SQE.CID()))
		r.until("the Abort command completes", func() bool {
			if abort.Done && !c.Done {
				t.Errorf("opcode %#x completes after its Abort command", c.SQE.Opcode())
			}
			return abort.Done
		})
		if st := c.CQE.Status(); abort.CQE.DW0() != 0 || st != nvme.AbortRequested {
			t.Errorf("opcode %#x: result %d, %v", c.SQE.Opcode(), abort.CQE.DW0(), st)
		}
	}
	if stays.Done || dev.Held() != 1 {
		t.Errorf("another command was aborted: the device has %d", dev.Held())
	}
	dev.Release()
	r.until("the write completes", func() bool { return stays.Done })
	n := r.w.Reactors[1].Memory().Available()
	testutil.True(t, n == free, "%d bytes have not come back", free-n)
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
