package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// prepareReads prepares a read of block 8i on each of the first n requests.
func (b *bare) prepareReads(n int) []*fabric.Request {
	for i, r := range b.reqs[:n] {
		r.Reset()
		r.SQE = nvme.SQE{}
		r.SQE.SetOpcode(nvme.NVMRead)
		r.SQE.SetFlags(psdtSGL << 6)
		r.SQE.SetNSID(1)
		r.SQE.RW().Set(uint64(i*8), 8, 0)
		r.HostLength = 4096
	}
	b.h.Prepare(b.reqs[:n])
	return b.reqs[:n]
}

// TestZeroCopyReadsEnd: a namespace is not removed, and its device not closed, before the last
// zero-copy read has ended, for any outcome of the command.
func TestZeroCopyReadsEnd(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	reqs := b.prepareReads(3)
	for i, r := range reqs {
		if !r.ZeroCopy || r.Dir != fabric.ControllerToHost || mem.Length(r.Segs) != 4096 {
			t.Fatalf("request %d: zero copy %v, %d bytes", i, r.ZeroCopy, mem.Length(r.Segs))
		}
	}
	b.h.Execute(reqs[:2])
	if b.q.done != 6 || b.q.bad != 0 { // 4 commands went before
		t.Fatalf("%d commands are done, %d bad", b.q.done, b.q.bad)
	}
	if got := b.h.t.find(testSub).Namespaces.Load().Get(1).Total(); got[backend.OpRead] != 2 ||
		got[dispatch.Sectors] != 16 {
		t.Errorf("%d reads of %d sectors are counted", got[backend.OpRead], got[dispatch.Sectors])
	}
	gone := testutil.Value(b.h.t.RemoveNamespace(testSub, 1))(t)
	testutil.Must(t, b.w.Until(func() bool { return b.h.channels[0].State().Closing }))
	testutil.True(t, !b.h.WriterWaits(reqs[0]), "a writer waits, although there is none")
	b.h.EndZeroCopy(reqs[0])
	b.h.Close(b.io) // the queue ends with an executed and a prepared read
	b.h.Abandon(reqs[2])
	b.h.EndZeroCopy(reqs[1])
	b.w.Settle()
	testutil.MustTrue(t, !closed(gone), "the namespace is removed during a zero-copy read")
	b.h.EndZeroCopy(reqs[2])
	testutil.Must(t, untilGone(b.w, gone))
}

// TestNoZeroCopyRead: memory that the queue cannot send from is not attached.
func TestNoZeroCopyRead(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	b.q.noZeroCopy = true
	for _, r := range b.prepareReads(2) {
		testutil.True(t, !r.ZeroCopy && len(r.Segs) == 0 && r.Length == 4096,
			"zero copy %v, %d segments, %d bytes", r.ZeroCopy, len(r.Segs), r.Length)
		b.h.Abandon(r)
	}
	testutil.Equal(t, b.h.channels[0].State().Busy.ZeroCopies, 0, "zero-copy reads have not ended")
}

// prepareWrites prepares a write of 64 KiB at each multiple of that on the first n requests.
func (b *bare) prepareWrites(n int, inCapsule bool) []*fabric.Request {
	for i, r := range b.reqs[:n] {
		r.Reset()
		r.SQE = nvme.SQE{}
		r.SQE.SetOpcode(nvme.NVMWrite)
		r.SQE.SetFlags(psdtSGL << 6)
		r.SQE.SetNSID(1)
		r.SQE.RW().Set(uint64(i*128), 128, 0)
		r.HostLength, r.InCapsule = 64<<10, inCapsule
	}
	b.h.Prepare(b.reqs[:n])
	return b.reqs[:n]
}

// firstBytes returns the first byte of each of the first n ranges of prepareWrites.
func (b *bare) firstBytes(n int) []byte {
	ch := b.h.channels[0]
	var first []byte
	for i := range n {
		io := &backend.IO{Op: backend.OpRead, Off: int64(i) << 16, Len: 64 << 10}
		segs, ok := ch.StartZeroCopy(io, nil)
		if !ok {
			b.q.bad++
			break
		}
		first = append(first, segs[0].B[0])
		ch.EndZeroCopy(io, segs)
	}
	return first
}

// TestZeroCopyWritesEnd: the memory of a write goes back to the device, for any outcome of the
// command. Only data of executed commands is written. The namespace waits for all of them.
func TestZeroCopyWritesEnd(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	reqs := b.prepareWrites(5, false)
	for i, r := range reqs {
		if !r.ZeroCopy || r.Dir != fabric.HostToController || mem.Length(r.Segs) != 64<<10 {
			t.Fatalf("request %d: zero copy %v, %d bytes", i, r.ZeroCopy, mem.Length(r.Segs))
		}
		for _, s := range r.Segs {
			for j := range s.B {
				s.B[j] = byte(i + 1)
			}
		}
	}
	done := b.q.done
	reqs[1].Status = nvme.TransientTransportError // a digest was wrong
	b.h.Execute(reqs[:2])
	testutil.MustTrue(t, b.q.done == done+2 && b.q.bad == 1, "%d commands are done, %d bad",
		b.q.done-done, b.q.bad)
	b.h.EndZeroCopy(reqs[0])
	b.h.EndZeroCopy(reqs[1])
	b.h.Abandon(reqs[2])
	b.h.EndZeroCopy(reqs[2])
	testutil.EqualSlices(t, b.firstBytes(5), []byte{1, 0, 0, 0, 0}, "written")
	if got := b.h.t.find(testSub).Namespaces.Load().Get(1).Total(); got[backend.OpWrite] != 1 ||
		got[dispatch.Sectors+1] != 128 {
		t.Errorf("%d writes of %d sectors are counted", got[backend.OpWrite],
			got[dispatch.Sectors+1])
	}
	gone := testutil.Value(b.h.t.RemoveNamespace(testSub, 1))(t)
	testutil.Must(t, b.w.Until(func() bool { return b.h.channels[0].State().Closing }))
	b.h.Execute(reqs[3:4]) // its data came in time
	b.h.Close(b.io)
	b.h.EndZeroCopy(reqs[3])
	b.w.Settle()
	testutil.MustTrue(t, !closed(gone), "the namespace is removed during a zero-copy write")
	b.h.Abandon(reqs[4])
	b.h.EndZeroCopy(reqs[4])
	testutil.Must(t, untilGone(b.w, gone))
}

// TestNoZeroCopyWrite: no memory is attached that the queue cannot receive into, and none to writes
// with data that was already received.
func TestNoZeroCopyWrite(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	for _, inCapsule := range []bool{false, true} {
		b.q.noZeroCopy = !inCapsule
		for _, r := range b.prepareWrites(2, inCapsule) {
			testutil.True(t, !r.ZeroCopy && len(r.Segs) == 0 && r.Length == 64<<10,
				"in capsule %v: zero copy %v, %d segments, %d bytes", inCapsule, r.ZeroCopy,
				len(r.Segs), r.Length)
			b.h.Abandon(r)
		}
	}
	testutil.Equal(t, b.h.channels[0].State().Busy.ZeroCopies, 0, "zero-copy writes have not ended")
}
