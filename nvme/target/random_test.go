package target

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestRandomFaults aborts, holds, cancels, fails, times out and hangs up in random order. Every
// command of an open queue completes once, Abort reports the outcome, all memory comes back, and a
// device that was given up writes only the data of its command.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(40) {
		sub, dev := hangingSubsystem(t)
		if seed%2 == 0 {
			dev.HonorCancel()
		}
		r := newHarness(t, 2, sub)
		x := &randomFaults{
			harness: r, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), dev: dev,
			h: r.connectHost(2),
		}
		for _, q := range x.h.io { // opens the channels
			r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.ok(q, rw(nvme.NVMRead, 2, 0, 1, make([]byte, 512)))
			r.ok(q, everyCommand()[1]) // the only write to its blocks, again and again
		}
		for _, re := range r.w.Reactors {
			x.free = append(x.free, re.Memory().Available())
		}
		for range 300 {
			x.step()
		}
		x.finish()
	}
}

// randomFaults is one run of TestRandomFaults.
type randomFaults struct {
	*harness
	seed uint64
	rnd  *rand.Rand
	dev  *backendtest.Faulty
	h    *host
	sent [2][]*fabrictest.Command // by queue, since it was connected
	free []int                    // bytes of each reactor before
}

// step does one thing.
func (x *randomFaults) step() {
	i := x.rnd.IntN(2)
	q := x.h.io[i]
	switch n := x.rnd.IntN(100); {
	case n < 50:
		x.sendAny(i)
	case n < 65:
		x.abortAny(i)
	case n < 70:
		x.dev.Hold(nil)
	case n < 75:
		x.dev.Release()
	case n < 80:
		x.dev.Full(true) // for a short time: a device that is full and idle is offered IOs again
		x.sendAny(i)
		x.sendAny(i)
		x.abortAny(i)
		if n%2 == 0 {
			q.HangUp()
		}
		x.dev.Full(false)
		if n%2 == 0 {
			x.reconnect(i)
		}
	case n < 83:
		x.dev.Fail(func(*backend.IO) error { return backend.ErrOffline })
	case n < 86:
		x.dev.Fail(nil)
	case n < 94:
		x.w.Advance(time.Duration(x.rnd.IntN(3000)) * time.Millisecond)
	case n < 97:
		x.w.Step()
	default:
		x.reconnect(i)
	}
}

// sendAny sends a command on queue i.
func (x *randomFaults) sendAny(i int) {
	x.t.Helper()
	q := x.h.io[i]
	if q.Outstanding() == 100 {
		return
	}
	all := append(everyCommand(), rw(nvme.NVMWrite, 2, 0, 8, make([]byte, 4096)))
	c := all[x.rnd.IntN(len(all))]
	c.InCapsule = c.SQE.Opcode() == nvme.NVMWrite && x.rnd.IntN(2) == 0
	x.sent[i] = append(x.sent[i], x.send(q, c))
}

// abortAny aborts a command of queue i, which may be done.
func (x *randomFaults) abortAny(i int) {
	x.t.Helper()
	if len(x.sent[i]) == 0 {
		return
	}
	c := x.sent[i][x.rnd.IntN(len(x.sent[i]))]
	done := c.Done
	a := x.ok(x.h.admin, abortCommand(uint16(i+1), c.SQE.CID()))
	if a.CQE.DW0() == 0 && (done || !c.Done || c.CQE.Status() != nvme.AbortRequested) {
		x.t.Errorf("seed %d: aborted opcode %#x: done before %v, done %v, %v", x.seed,
			c.SQE.Opcode(), done, c.Done, c.CQE.Status())
	}
}

// reconnect ends queue i suddenly and connects another one in its place.
func (x *randomFaults) reconnect(i int) {
	x.t.Helper()
	x.h.io[i].HangUp()
	x.w.Advance(time.Duration(closeGrace + timeoutInterval)) // the device may hang
	x.h.io[i] = x.dialInfo((i+1)%2, x.h.info)
	x.ok(x.h.io[i], x.h.ioArgs(uint16(i+1)).command())
	x.sent[i] = nil
}

// finish ends all faults.
func (x *randomFaults) finish() {
	x.t.Helper()
	x.dev.Fail(nil)
	x.dev.Release()
	x.w.Advance(time.Minute)
	for i := range x.sent {
		for _, c := range x.sent[i] {
			switch st := c.CQE.Status() &^ nvme.More; {
			case !c.Done:
				x.t.Errorf("seed %d: opcode %#x is lost", x.seed, c.SQE.Opcode())
			case st != nvme.Success && st != notReady && st != nvme.AbortRequested:
				x.t.Errorf("seed %d: opcode %#x: %v", x.seed, c.SQE.Opcode(), st)
			}
		}
		if n := x.h.io[i].Outstanding(); n != 0 {
			x.t.Errorf("seed %d: queue %d has %d commands", x.seed, i+1, n)
		}
	}
	for i, re := range x.w.Reactors {
		if n := re.Memory().Available(); n != x.free[i] {
			x.t.Errorf("seed %d: reactor %d: %d bytes have not come back", x.seed, i, x.free[i]-n)
		}
	}
	want := everyCommand()[1].Data
	read := x.ok(x.h.io[0], rw(nvme.NVMRead, 1, 64, 64, make([]byte, len(want))))
	testutil.True(x.t, bytes.Equal(read.Data, want),
		"seed %d: the device wrote what it was not given", x.seed)
	if l := x.target.Stats(); !l[0].Ready || l[0].Orphans != 0 {
		x.t.Errorf("seed %d: %+v", x.seed, l[0])
	}
	x.h.hangUp()
	x.w.Settle()
	testutil.Equal(x.t, x.target.Sessions(), 0, "seed %d: queues are left", x.seed)
}
