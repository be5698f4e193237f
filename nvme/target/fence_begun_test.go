package target

import (
	"bytes"
	"cmp"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// preemption is how one host preempts another one.
type preemption struct {
	name   string
	abort  bool
	shared bool // there is no reservation, so the other host keeps its access
}

var preemptions = []preemption{
	{"preempt", false, false}, {"abort", true, false}, {"abort without a reservation", true, true},
}

// hosts connects the host that preempts and the other one, which holds the namespace unless it is
// shared.
func (p *preemption) hosts(r *harness) (a, b *host) {
	a, b = r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	if !p.shared {
		r.ok(b.io[0], acquire(2, nvme.WriteExclusive))
	}
	return a, b
}

// start sends the command that preempts, and waits until reactors know.
func (p *preemption) start(r *harness, a *host) *fabrictest.Command {
	action := nvme.ReservationPreempt
	if p.abort {
		action = nvme.ReservationPreemptAndAbort
	}
	c := r.send(a.io[0], preempt(action, 1, 2, nvme.WriteExclusive))
	a.untilChanged(hasOneRegistrant)
	return c
}

func opIs(op backend.Op) func(*backend.IO) bool {
	return func(io *backend.IO) bool { return io.Op == op }
}

// blocks reads n blocks of namespace 1, also if there is a limit.
func (r *harness) blocks(q *fabrictest.Queue, slba uint64, n uint32) []byte {
	r.t.Helper()
	c := r.send(q, rw(nvme.NVMRead, 1, slba, n, make([]byte, n*512)))
	r.w.Advance(10 * time.Second)
	r.allDone([]*fabrictest.Command{c}, nvme.Success)
	return c.Data
}

// TestPreemptDuringCopy: of a Copy that is half done nothing is written after the preempt.
func TestPreemptDuringCopy(t *testing.T) {
	for _, p := range preemptions {
		for _, op := range []backend.Op{backend.OpRead, backend.OpWrite} {
			t.Run(p.name+" during "+op.String(), func(t *testing.T) {
				sub, dev := faultySubsystem(t)
				r := newHarness(t, 2, sub)
				a, b := p.hosts(r)
				r.ok(b.io[0], rw(nvme.NVMWrite, 1, 100, 8, fill(9, 4096)))
				var from []source
				for i := range 2 * readWidth {
					from = append(from, source{slba: uint64(100 + i), blocks: 1})
				}
				dev.Hold(opIs(op))
				c := r.send(b.io[0], copyTo(200, nvme.CopyRanges, from...))
				r.until("the device has its part", func() bool { return dev.Held() == readWidth })
				done := p.start(r, a)
				if p.abort || op == backend.OpWrite {
					testutil.True(t, !done.Done, "the preempt is done")
				} else { // another goroutine makes the change
					r.until("the preempt is done", func() bool { return done.Done })
				}
				dev.Release()
				r.allDone([]*fabrictest.Command{done}, nvme.Success)
				r.allDone([]*fabrictest.Command{c}, nvme.AbortedPreempt)
				first := 0
				if op == backend.OpWrite { // the device had them before
					first = readWidth
				}
				rest := r.blocks(a.io[0], uint64(200+first), uint32(len(from)-first))
				testutil.True(t, bytes.Equal(rest, make([]byte, len(rest))), "the copy went on")
			})
		}
	}
}

// TestPreemptPiece: a command that takes several IOs is preempted while the next one waits at a
// limit: it ends, and the limit has nothing of it.
func TestPreemptPiece(t *testing.T) {
	for _, p := range preemptions {
		for _, kind := range turnsKinds {
			if kind.name == "compare" || kind.name == "verify" && !p.abort {
				continue // it does not wait in between, or still may read
			}
			t.Run(p.name+" during "+kind.name, func(t *testing.T) {
				sub := turnsSubsystem(t, func(dev backend.Device) backend.Device { return dev })
				sub.Namespaces[0].Limits = qos.Limits{IOPS: 1}
				r := newHarness(t, 2, sub)
				a, b := p.hosts(r)
				r.blocks(b.io[0], 0, 1) // opens the channel
				c := r.send(b.io[0], kind.make(1))
				r.w.Advance(time.Second)
				var w *qos.Waiter
				for f := range r.raw[1].flows.All() {
					w = cmp.Or(w, f.limits.First())
				}
				testutil.MustTrue(t, w != nil && w.Owner.(*cmd).compound != nil,
					"it does not wait at the limit")
				done := p.start(r, a)
				r.w.Advance(time.Second)
				r.allDone([]*fabrictest.Command{done}, nvme.Success)
				r.allDone([]*fabrictest.Command{c}, nvme.AbortedPreempt)
				testutil.True(t, !w.Listed(), "it waits at the limit still")
			})
		}
	}
}

// TestPreemptDuringPair: a fused pair that waits for the device, or for writes to its blocks, fails
// as a whole.
func TestPreemptDuringPair(t *testing.T) {
	for _, p := range preemptions {
		for _, op := range []backend.Op{backend.OpRead, backend.OpWrite} {
			t.Run(p.name+" during "+op.String(), func(t *testing.T) {
				sub, dev := faultySubsystem(t)
				r := newHarness(t, 2, sub)
				a, b := p.hosts(r)
				r.ok(b.io[0], rw(nvme.NVMWrite, 1, 8, 1, fill(3, 512)))
				dev.Hold(opIs(op))
				var early []*fabrictest.Command
				if op == backend.OpWrite { // the pair waits for it
					early = append(early, r.send(b.io[0], rw(nvme.NVMWrite, 1, 8, 1, fill(3, 512))))
					r.until("the device has a write", func() bool { return dev.Held() == 1 })
				}
				pair := pairOf(8, fill(3, 512), fill(4, 512))
				r.must(b.io[0].Send(pair...))
				r.w.Settle()
				done := p.start(r, a)
				dev.Release()
				r.allDone([]*fabrictest.Command{done}, nvme.Success)
				r.allDone(pair, nvme.AbortedPreempt)
				r.until("all end", func() bool { return len(early) == 0 || early[0].Done })
				testutil.True(t, r.blocks(a.io[0], 8, 1)[0] == 3, "the pair has written")
			})
		}
	}
}

// TestPreemptHalf: the first half of a pair fails with the second half if that comes after the
// preempt.
func TestPreemptHalf(t *testing.T) {
	for _, p := range preemptions {
		t.Run(p.name, func(t *testing.T) {
			r := newHarness(t, 2, ramSubsystem(t, 1))
			a, b := p.hosts(r)
			pair := pairOf(8, fill(0, 512), fill(4, 512))
			r.send(b.io[0], pair[0])
			r.w.Settle()
			r.allDone([]*fabrictest.Command{p.start(r, a)}, nvme.Success)
			r.send(b.io[0], pair[1])
			r.until("the pair ends", func() bool { return pair[0].Done && pair[1].Done })
			want := [2]nvme.Status{nvme.AbortedFailedFused, reservationConflict}
			if p.abort {
				want[0] = nvme.AbortedPreempt
			}
			if p.shared {
				want[1] = nvme.AbortedFailedFused
			}
			for i, c := range pair {
				testutil.Equal(t, c.CQE.Status()&^nvme.More, want[i], "%d", i)
			}
			testutil.True(t, r.blocks(a.io[0], 8, 1)[0] == 0, "the pair has written")
		})
	}
}

// TestPreemptDuringTransfer: commands sent before a preempt write nothing if their data arrives
// after it. After Preempt and Abort this is so even if the reservation has been released meanwhile.
func TestPreemptDuringTransfer(t *testing.T) {
	for _, p := range preemptions {
		t.Run(p.name, func(t *testing.T) {
			r := newHarness(t, 2, ramSubsystem(t, 1))
			a, b := p.hosts(r)
			r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // opens the channel
			list := []*fabrictest.Command{
				rw(nvme.NVMWrite, 1, 0, 1, fill(7, 512)), dsm(1, true, [2]uint64{8, 1}),
				copyTo(2, nvme.CopyRanges, source{slba: 1, blocks: 1}),
			}
			list = append(list, pairOf(3, fill(0, 512), fill(8, 512))...)
			for _, c := range list {
				c.Late = true
			}
			r.must(b.io[0].Send(list...))
			r.allDone([]*fabrictest.Command{p.start(r, a)}, nvme.Success)
			if p.abort {
				r.ok(a.io[0], release(1, nvme.WriteExclusive))
			}
			for _, c := range list {
				b.io[0].Arrive(c)
			}
			r.w.Settle()
			for i, c := range list {
				if st := c.CQE.Status() &^ nvme.More; !c.Done || st != nvme.AbortedPreempt &&
					st != nvme.AbortedFailedFused {
					t.Errorf("command %d: done %v, %v", i, c.Done, st)
				}
			}
			if b := r.blocks(a.io[0], 0, 4); !bytes.Equal(b, make([]byte, len(b))) {
				t.Error("written after the preempt")
			}
			r.status(b.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), map[bool]nvme.Status{
				true: nvme.Success, false: reservationConflict,
			}[p.abort])
		})
	}
}

// TestPreemptAtLimit: writes that wait at a limit, with their data or without, write nothing after
// a preempt. The preempt does not wait for them.
func TestPreemptAtLimit(t *testing.T) {
	for _, p := range preemptions {
		t.Run(p.name, func(t *testing.T) {
			r := newHarness(t, 2, limitedSubsystem(t))
			a, b := p.hosts(r)
			r.ok(b.io[0], readBlocks(8)())
			var list []*fabrictest.Command
			for i := range 4 {
				c := rw(nvme.NVMWrite, 1, uint64(i), 1, fill(7, 512))
				c.InCapsule = i%2 > 0
				list = append(list, r.send(b.io[0], c))
			}
			r.w.Settle()
			r.allDone([]*fabrictest.Command{p.start(r, a)}, nvme.Success)
			if !p.abort {
				r.w.Advance(10 * time.Second)
			}
			for i, c := range list {
				want := nvme.AbortedPreempt
				if !p.abort && i%2 == 0 { // it is prepared anew
					want = reservationConflict
				}
				r.allDone([]*fabrictest.Command{c}, want)
			}
			if b := r.blocks(a.io[0], 0, 4); !bytes.Equal(b, make([]byte, len(b))) {
				t.Error("written after the preempt")
			}
		})
	}
}

// TestCopyOfReserved: a Copy reads its source namespaces and writes to its destination; a source
// that must not be read is found before anything is written.
func TestCopyOfReserved(t *testing.T) {
	for typ, want := range map[nvme.ReservationType][2]nvme.Status{
		nvme.WriteExclusive:  {nvme.Success, reservationConflict},
		nvme.ExclusiveAccess: {reservationConflict, reservationConflict},
	} {
		r := newHarness(t, 2, ramSubsystem(t, 2))
		a, b := r.numbered(0, 1), r.numbered(1, 1)
		r.enableCopy(b)
		on2 := func(c *fabrictest.Command) *fabrictest.Command {
			c.SQE.SetNSID(2)
			return c
		}
		r.ok(a.io[0], on2(register(1)))
		r.ok(a.io[0], on2(acquire(1, typ)))
		r.ok(a.io[0], rw(nvme.NVMWrite, 1, 0, 1, fill(5, 512)))
		r.status(b.io[0], copyTo(8, nvme.CopyNamespaces, source{1, 0, 1}, source{2, 0, 1}), want[0])
		copied := r.blocks(a.io[0], 8, 1)[0] != 0
		testutil.Equal(t, copied, want[0].OK(), "%v: copied", typ)
		r.status(b.io[0], on2(copyTo(8, nvme.CopyNamespaces, source{1, 0, 1})), want[1])
	}
}
