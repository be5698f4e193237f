package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
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

// TestLoansOutlive: a namespace is not gone, and its device not closed, before the last loan is back, whatever became of the command.
func TestLoansOutlive(t *testing.T) {
	b := newBare(t, NamespaceConfig{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	reqs := b.prepareReads(3)
	for i, r := range reqs {
		if !r.Lent || r.Dir != fabric.ControllerToHost || mem.Length(r.Segs) != 4096 {
			t.Fatalf("request %d: lent %v, %d bytes", i, r.Lent, mem.Length(r.Segs))
		}
	}
	b.h.Execute(reqs[:2])
	if b.q.done != 6 || b.q.bad != 0 { // 4 commands went before
		t.Fatalf("%d commands are done, %d bad", b.q.done, b.q.bad)
	}
	if got := b.h.t.find(testSub).namespaces.Load().get(1).users.total(); got.reads != 2 || got.readSectors != 16 {
		t.Errorf("%d reads of %d sectors are counted", got.reads, got.readSectors)
	}
	gone := make(chan error, 1)
	go func() {
		gone <- b.h.t.RemoveNamespace(testSub, 1)
		b.w.Reactors[0].Wake()
	}()
	removed := func() bool { return b.h.t.find(testSub).namespaces.Load().get(1) == nil }
	if err := b.w.Until(func() bool { return removed() && b.h.channels[0].onClosed != nil }); err != nil {
		t.Fatal(err)
	}
	b.h.Release(reqs[0])
	b.h.Close(b.io) // the queue dies with a loan of each kind
	b.h.Abandon(reqs[2])
	b.h.Release(reqs[1])
	b.w.Settle()
	if len(gone) > 0 {
		t.Fatalf("the namespace is gone with a loan out: %v", <-gone)
	}
	b.h.Release(reqs[2])
	if err := b.w.Until(func() bool { return len(gone) > 0 }); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
}

// TestNoLoan: what a queue does not reach, or a channel that is only being opened has, goes by a copy.
func TestNoLoan(t *testing.T) {
	b := newBare(t, NamespaceConfig{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	b.q.noLoans = true
	for _, r := range b.prepareReads(2) {
		if r.Lent || len(r.Segs) > 0 || r.Length != 4096 {
			t.Errorf("lent %v, %d segments, %d bytes", r.Lent, len(r.Segs), r.Length)
		}
		b.h.Abandon(r)
	}
	if n := b.h.channels[0].loans; n != 0 {
		t.Errorf("%d loans are out", n)
	}
}
