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
	t.Parallel() // it computes
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

// FuzzCommand sends arbitrary commands on the admin and I/O queue of a connected host. Each gets
// one CQE, the contract is kept (the harness checks it), and the target keeps running.
func FuzzCommand(f *testing.F) {
	for _, c := range []*fabrictest.Command{
		rw(nvme.NVMRead, 1, 0, 8, nil), rw(nvme.NVMWrite, 1, 1<<55, 8, nil),
		rw(nvme.NVMWriteZeroes, 1, 0, 65536, nil), rw(nvme.NVMCompare, 1, 0, 8, nil),
		rw(nvme.NVMVerify, 1, 0, 8, nil), copyTo(8, nvme.CopyRanges, source{blocks: 8}),
		fused(nvme.NVMCompare, 1, 0, make([]byte, 4096)), fused(nvme.NVMWrite, 2, 0, nil),
		dsm(1, true, [2]uint64{0, 1}), command(nvme.NVMFlush, nvme.NSIDAll, nil),
		identifyCommand(nvme.CNSController, 0),
		logCommand(nvme.LogDiscovery, 4096, 0), logCommand(nvme.LogError, 64, 1<<63),
		getFeature(nvme.FeatureHostIdentifier, 0, 1),
		setFeature(nvme.FeatureKeepAliveTimer, 1), propertyGetCommand(nvme.PropertyCAP),
		propertySetCommand(nvme.PropertyCC, 0),
		adminArgs(testSub).command(), command(nvme.AdminAbort, 0, nil),
		command(nvme.AdminAsyncEventReq, 0, nil),
		selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll),
		telemetryCommand(nvme.LogTelemetryHost, true, 4096, 0), commandSetsOf(1),
	} {
		f.Add(c.SQE[:], uint32(4096), false, []byte{1, 2, 3})
		f.Add(c.SQE[:], uint32(0), true, []byte{})
	}
	f.Fuzz(func(t *testing.T, sqe []byte, length uint32, capsule bool, data []byte) {
		r, h := joined(t, 2, 1, ramSubsystem(t, 2))
		d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
		fresh := r.dial(0)
		for _, q := range []*fabrictest.Queue{fresh, h.io[0], d.admin, h.admin} {
			c := &fabrictest.Command{
				Data:      make([]byte, length%(1<<20+4096)),
				InCapsule: capsule,
			}
			copy(c.SQE[:], sqe)
			copy(c.Data, data)
			r.send(q, c)
			r.w.Settle()
			switch {
			case c.Done || q.Closed():
			// waits for an event
			case c.SQE.Opcode() == nvme.AdminAsyncEventReq && (q == h.admin || q == d.admin):
			default:
				if c.SQE.FUSE() == 1 { // waits for the second one
					r.w.Advance(time.Duration(pairWait) + time.Second)
				}
				r.until("the command completes", func() bool { return c.Done || q.Closed() })
			}
			r.w.Advance(10 * time.Millisecond) // for a self-test
		}
	})
}

// TestRandomCommands does the same as the fuzzer with many commands on one target, biased towards
// known ones.
func TestRandomCommands(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	r := newHarness(t, 2, ramSubsystem(t, 2))
	var h *host
	for i := range 5000 {
		if h == nil || h.admin.Closed() || h.io[0].Closed() || !h.csts().RDY() {
			if h != nil {
				h.hangUp()
			}
			h = r.connectHost(1)
		}
		q := h.io[0]
		if i%2 == 0 {
			q = h.admin
		}
		c := &fabrictest.Command{Data: make([]byte,
			[]int{0, 4, 512, 1024, 4096, 16384}[rnd.IntN(6)]), InCapsule: rnd.IntN(8) == 0}
		for j := range c.SQE {
			if rnd.IntN(4) == 0 {
				c.SQE[j] = byte(rnd.Uint32())
			}
		}
		op := []nvme.Opcode{0, 1, 2, 5, 6, 8, 9, 10, 20, 24, 25, nvme.FabricsOpcode}[rnd.IntN(12)]
		c.SQE.SetOpcode(op)
		c.SQE.SetFlags(psdtSGL << 6)
		c.SQE.SetNSID(uint32(rnd.IntN(4)))
		if op == nvme.FabricsOpcode {
			c.SQE[4] = byte(rnd.IntN(10))
		}
		r.do(q, c)
		if i%16 == 0 {
			r.w.Advance(5 * time.Millisecond)
		}
	}
}

// commandSetsOf is Identify with CNS 1Ch.
func commandSetsOf(cntlid uint16) *fabrictest.Command {
	c := identifyCommand(nvme.CNSCommandSets, 0)
	c.SQE.Identify().Set(nvme.CNSCommandSets, cntlid, 0)
	return c
}
