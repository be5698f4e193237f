package target

import (
	"fmt"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestPairAtLimit: a fused pair waits at a limit as one command, for longer than its halves wait for
// each other, with its data in the capsule or not.
func TestPairAtLimit(t *testing.T) {
	for _, inCapsule := range []bool{false, true} {
		t.Run(fmt.Sprint(inCapsule), func(t *testing.T) {
			r := newHarness(t, 2, limitedSubsystem(t))
			h, before := waiting(r, 30) // one of them per second
			pair := pairOf(0, fill(0, 512), fill(1, 512))
			for _, c := range pair {
				c.InCapsule = inCapsule
				r.send(h.io[0], c)
			}
			r.w.Advance(28 * time.Second)
			if pair[0].Done || pair[1].Done {
				t.Fatalf("%v, %v before their turn", pair[0].CQE.Status(), pair[1].CQE.Status())
			}
			r.w.Advance(4 * time.Second)
			r.allDone(append(before, pair...), nvme.Success)
		})
	}
}

// TestPairEndsAtLimit: both halves end when one is aborted, or when their queue ends.
func TestPairEndsAtLimit(t *testing.T) {
	for _, inCapsule := range []bool{false, true} {
		t.Run(fmt.Sprint(inCapsule), func(t *testing.T) {
			r := newHarness(t, 2, limitedSubsystem(t))
			h, before := waiting(r, 2)
			pair := pairOf(0, fill(0, 512), fill(1, 512))
			for _, c := range pair {
				c.InCapsule = inCapsule
				r.send(h.io[0], c)
			}
			r.w.Settle()
			r.ok(h.admin, abortCommand(1, pair[0].SQE.CID()))
			r.allDone(pair[:1], nvme.AbortRequested)
			r.allDone(pair[1:], nvme.AbortedFailedFused)
			r.w.Advance(3 * time.Second)
			r.allDone(before, nvme.Success)
			r.ok(h.io[0], readBlocks(8)())
			for _, c := range pairOf(0, fill(0, 512), fill(1, 512)) {
				c.InCapsule = inCapsule
				r.send(h.io[0], c)
			}
			r.w.Settle()
			h.hangUp()
			r.until("the queue ends", h.io[0].Closed)
			if h.io[0].Outstanding() > 0 {
				t.Error("commands are left")
			}
		})
	}
}

// TestCopyAtLimit: what Compare, Verify and Copy read and write counts.
func TestCopyAtLimit(t *testing.T) {
	const blocks = 2048 // 1 MiB
	for name, tc := range map[string]struct {
		make func() *fabrictest.Command
		want float64 // seconds of each
	}{
		"verify": {func() *fabrictest.Command { return rw(nvme.NVMVerify, 1, 0, blocks, nil) }, 1},
		"compare": {func() *fabrictest.Command {
			return rw(nvme.NVMCompare, 1, 0, 256, make([]byte, 256*512))
		}, 1. / 8},
		"copy": {func() *fabrictest.Command {
			return copyTo(blocks, nvme.CopyRanges, source{1, 0, blocks})
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			sub := copySubsystem(t)
			sub.Namespaces[0].Limits = Limits{Bandwidth: 1 << 20}
			r := newHarness(t, 1, sub)
			h := r.connectHost(1)
			var l load
			l.start(r, h.io[0], 4, tc.make)
			r.w.Advance(10 * time.Second)
			before := l.done
			r.w.Advance(100 * time.Second)
			expect(t, "commands in 100 s", l.done-before, 100/tc.want, 0.03)
			if l.failed > 0 {
				t.Errorf("%d failed", l.failed)
			}
			l.depth = 0
		})
	}
}

// TestCopyFromLimited: a namespace with limits of its own is no source for another, whose commands
// do not wait at them; one without limits is.
func TestCopyFromLimited(t *testing.T) {
	sub := copySubsystem(t)
	sub.Namespaces[0].Limits = Limits{Bandwidth: 1 << 20}
	r := newHarness(t, 1, sub)
	h := r.connectHost(1)
	r.enableCopy(h)
	to := func(nsid, from uint32) *fabrictest.Command {
		c := copyTo(2048, nvme.CopyNamespaces, source{from, 0, 8})
		c.SQE.SetNSID(nsid)
		return c
	}
	r.status(h.io[0], to(2, 1), copyIncompatible)
	r.ok(h.io[0], to(1, 1))
	r.ok(h.io[0], to(1, 2))
}
