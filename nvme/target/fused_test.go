package target

import (
	"bytes"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fused makes a half of a fused pair: FUSE is 1 or 2.
func fused(op nvme.Opcode, fuse uint8, slba uint64, data []byte) *fabrictest.Command {
	c := rw(op, 1, slba, max(1, uint32(len(data)/512)), data)
	c.SQE.SetFlags(psdtSGL<<6 | fuse)
	return c
}

// pairOf makes a fused Compare and Write.
func pairOf(slba uint64, old, data []byte) []*fabrictest.Command {
	return []*fabrictest.Command{
		fused(nvme.NVMCompare, 1, slba, old), fused(nvme.NVMWrite, 2, slba, data),
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// physical is a device with blocks of 512 bytes and physical blocks of 4096.
func physical(i *backend.Info) { i.PhysicalBlockSize = 4096 }

// TestFusedStatus: what a pair completes with, in order, and what it leaves (I07; Base section
// 3.4.2, NVM section 3.2).
func TestFusedStatus(t *testing.T) {
	const (
		failed  = nvme.AbortedFailedFused
		missing = nvme.AbortedMissingFused
		differs = nvme.CompareFailure | nvme.DNR
		exceeds = nvme.AtomicWriteUnitExceeded | nvme.DNR
		none    = nvme.Success
	)
	zero, one := fill(0, 512), fill(1, 512)
	other := func(c *fabrictest.Command, nsid uint32) *fabrictest.Command {
		c.SQE.SetNSID(nsid)
		return c
	}
	compare := func(slba uint64) *fabrictest.Command {
		return fused(nvme.NVMCompare, 1, slba, zero)
	}
	write := func(slba uint64) *fabrictest.Command { return fused(nvme.NVMWrite, 2, slba, one) }
	plain := rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))
	type list = []*fabrictest.Command
	for _, tc := range []struct {
		name    string
		batch   list
		want    []nvme.Status
		written bool
	}{
		{"a pair", list{compare(0), write(0)}, []nvme.Status{none, none}, true},
		{"of 4096 bytes", pairOf(0, fill(0, 4096), fill(1, 4096)), []nvme.Status{none, none}, true},
		{
			"too large", pairOf(0, fill(0, 8192), fill(1, 8192)),
			[]nvme.Status{exceeds, exceeds},
			false,
		},
		{"another content", pairOf(0, one, one), []nvme.Status{differs, failed}, false},
		{
			"the last byte differs", pairOf(0, append(fill(0, 511), 1), one),
			[]nvme.Status{differs, failed},
			false,
		},
		{"the second alone", list{write(0)}, []nvme.Status{missing}, false},
		{"the first, then another", list{compare(0), plain}, []nvme.Status{missing, none}, false},
		{
			"exchanged",
			list{write(0), compare(0), plain},
			[]nvme.Status{missing, missing, none},
			false,
		},
		{
			"another between",
			list{compare(0), plain, write(0)},
			[]nvme.Status{missing, none, missing},
			false,
		},
		{
			"two firsts",
			list{compare(0), compare(0), write(0)},
			[]nvme.Status{missing, none, none},
			true,
		},
		{
			"two seconds",
			list{compare(0), write(0), write(0)},
			[]nvme.Status{none, none, missing},
			true,
		},
		{
			"another block",
			list{compare(0), write(1)},
			[]nvme.Status{invalidField, invalidField},
			false,
		},
		{
			"another length",
			list{compare(0), fused(nvme.NVMWrite, 2, 0, fill(1, 1024))},
			[]nvme.Status{invalidField, invalidField},
			false,
		},
		{
			"another namespace",
			list{compare(0), other(write(0), 2)},
			[]nvme.Status{invalidField, invalidField},
			false,
		},
		{
			"no namespace",
			list{other(compare(0), 0), write(0)},
			[]nvme.Status{invalidNamespace, failed},
			false,
		},
		{
			"all namespaces",
			list{other(compare(0), nvme.NSIDAll), other(write(0), nvme.NSIDAll)},
			[]nvme.Status{invalidNamespace, invalidNamespace},
			false,
		},
		{
			"beyond the end",
			list{compare(2048), write(2048)},
			[]nvme.Status{outOfRange, outOfRange},
			false,
		},
		{
			"write protected",
			list{other(compare(0), 3), other(write(0), 3)},
			[]nvme.Status{failed, writeProtected},
			false,
		},
		{
			"two writes",
			list{fused(nvme.NVMWrite, 1, 0, one), write(0)},
			[]nvme.Status{invalidField, failed},
			false,
		},
		{
			"two compares",
			list{compare(0), fused(nvme.NVMCompare, 2, 0, zero)},
			[]nvme.Status{failed, invalidField},
			false,
		},
		{
			"unknown opcodes",
			list{fused(0x33, 1, 0, one), fused(0x33, 2, 0, one)},
			[]nvme.Status{nvme.InvalidOpcode | nvme.DNR, nvme.InvalidOpcode | nvme.DNR},
			false,
		},
		{"FUSE 11b", list{fused(nvme.NVMWrite, 3, 0, one)}, []nvme.Status{invalidField}, false},
		{
			"11b between",
			list{compare(0), fused(nvme.NVMWrite, 3, 0, one), write(0)},
			[]nvme.Status{missing, invalidField, missing},
			false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev := &recorder{Device: ramDevice(t, 1<<20, 512), info: physical}
			r := newHarness(t, 1, SubsystemConfig{
				NQN: testSub, AllowAnyHost: true, Namespaces: []NamespaceConfig{
					{NSID: 1, Device: dev},
					{NSID: 2, Device: ramDevice(t, 1<<20, 512)},
					{NSID: 3, Device: ramDevice(t, 1<<20, 512), ReadOnly: true},
				},
			})
			q := r.connectHost(1).io[0]
			for nsid := range uint32(3) { // opens the channels
				r.ok(q, rw(nvme.NVMRead, nsid+1, 0, 1, make([]byte, 512)))
			}
			r.must(q.Send(tc.batch...))
			r.w.Settle()
			for i, c := range tc.batch {
				if st := c.CQE.Status() &^ nvme.More; !c.Done || st != tc.want[i] {
					t.Errorf("command %d: done %v, %v, want %v", i, c.Done, st, tc.want[i])
				}
			}
			got := r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data
			if written := bytes.Equal(got, one); written != tc.written {
				t.Errorf("written: %v", written)
			}
		})
	}
}

// TestFusedAdmin: Admin and Fabrics commands cannot be fused.
func TestFusedAdmin(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1)
	for _, fuse := range []uint8{1, 2, 3} {
		for _, c := range []*fabrictest.Command{
			identifyCommand(nvme.CNSController, 0), propertyGetCommand(nvme.PropertyCAP),
			command(nvme.AdminKeepAlive, 0, nil),
		} {
			c.SQE.SetFlags(psdtSGL<<6 | fuse)
			r.status(h.admin, c, invalidField)
		}
		c := propertyGetCommand(nvme.PropertyCAP)
		c.SQE.SetFlags(psdtSGL<<6 | fuse)
		r.status(h.io[0], c, invalidField)
	}
	noSGL := fused(nvme.NVMCompare, 1, 0, fill(0, 512))
	noSGL.SQE.SetFlags(1) // PSDT is checked as ever
	r.status(h.io[0], noSGL, invalidField)
}

// TestFusedWaits: the first command waits for the second one, but not for ever; an Abort of either
// ends both, and so does the end of the queue.
func TestFusedWaits(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	h := r.connectHost(2)
	q := h.io[0]
	zero, one := fill(0, 512), fill(1, 512)
	abort := func(c *fabrictest.Command) {
		t.Helper()
		a := command(nvme.AdminAbort, 0, nil)
		a.SQE.Abort().Set(1, c.SQE.CID())
		if r.ok(h.admin, a); a.CQE.DW0() != 0 || c.CQE.Status().Code() != nvme.AbortRequested {
			t.Errorf("Abort: %#x, %v", a.CQE.DW0(), c.CQE.Status())
		}
	}
	p := pairOf(0, zero, one)
	r.send(q, p[0])
	r.w.Advance(time.Duration(pairWait) - time.Second)
	if p[0].Done {
		t.Fatalf("%v without the second", p[0].CQE.Status())
	}
	r.ok(q, p[1])
	if !p[0].Done || !p[0].CQE.Status().OK() {
		t.Errorf("the first: %v", p[0].CQE.Status())
	}
	p = pairOf(0, one, zero)
	r.send(q, p[0])
	r.w.Advance(time.Duration(pairWait) + time.Second)
	if st := p[0].CQE.Status().Code(); st != nvme.AbortedMissingFused {
		t.Errorf("after the wait: %v", st)
	}
	r.status(q, p[1], nvme.AbortedFailedFused)
	p = pairOf(0, one, zero)
	r.send(q, p[0])
	r.w.Settle()
	abort(p[0])
	r.status(q, p[1], nvme.AbortedFailedFused)
	if got := r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data; !bytes.Equal(got, one) {
		t.Error("a pair that failed has written")
	}
	r.send(q, pairOf(0, one, zero)[0])
	r.w.Settle()
	q.HangUp() // with the first waiting
	r.until("the queue ends", func() bool { return q.Closed() })
}

// TestFusedLock: while a pair is on its way, on any reactor, writes to its blocks wait, those that
// the device has come first, and everything else goes on.
func TestFusedLock(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r := newHarness(t, 3, sub)
	h := r.connectHost(2)
	a, b := h.io[0], h.io[1] // on different reactors
	zero, one, two := fill(0, 512), fill(1, 512), fill(2, 512)
	read := func() byte { return r.ok(b, rw(nvme.NVMRead, 1, 8, 1, make([]byte, 512))).Data[0] }
	r.ok(a, rw(nvme.NVMWrite, 1, 8, 1, zero))
	r.ok(b, rw(nvme.NVMWrite, 1, 8, 1, zero))

	dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	early := r.send(b, rw(nvme.NVMWrite, 1, 8, 1, one))
	r.until("the device has a write", func() bool { return dev.Held() == 1 })
	p := pairOf(8, one, two)
	r.must(a.Send(p...))
	r.w.Settle()
	late := []*fabrictest.Command{ // each changes block 8
		rw(nvme.NVMWrite, 1, 8, 1, zero), rw(nvme.NVMWrite, 1, 1, 8, fill(0, 4096)),
		rw(nvme.NVMWriteZeroes, 1, 0, 64, nil), dsm(1, true, [2]uint64{100, 8}, [2]uint64{8, 1}),
		copyTo(7, nvme.CopyRanges, source{slba: 200, blocks: 2}),
	}
	for _, c := range late {
		r.send(b, c)
	}
	far := r.send(b, rw(nvme.NVMWrite, 1, 9, 1, one))
	r.until("another block is written", func() bool { return dev.Held() == 2 })
	for _, c := range append(late, p[0], p[1], early) {
		if c.Done {
			t.Fatalf("opcode %#x has overtaken", c.SQE.Opcode())
		}
	}
	if read() != 0 {
		t.Error("a read waits")
	}
	dev.Release()
	for _, c := range append(late, early, p[0], p[1], far) {
		r.until("all complete", func() bool { return c.Done })
		if !c.CQE.Status().OK() {
			t.Errorf("opcode %#x: %v", c.SQE.Opcode(), c.CQE.Status())
		}
	}
	if got := read(); got != 0 {
		t.Errorf("block 8 is %d: the last write is lost", got)
	}
}

// TestFusedLockPending: a pair waits for writes that the device has, not for those that it does not
// have, which wait for the pair.
func TestFusedLockPending(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h := r.connectHost(2)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	first := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, fill(1, 512)))
	r.w.Settle()
	dev.Full(true)
	last := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, fill(3, 512)))
	pair := pairOf(0, fill(1, 512), fill(2, 512))
	for _, c := range pair {
		r.send(h.io[1], c)
	}
	r.w.Settle()
	dev.Full(false)
	r.w.Settle()
	if first.Done || last.Done || pair[0].Done {
		t.Errorf("done: %v, %v, %v", first.Done, last.Done, pair[0].Done)
	}
	dev.Release()
	r.until("all complete", func() bool { return last.Done && pair[1].Done })
	for i, c := range pair {
		if st := c.CQE.Status(); !st.OK() {
			t.Errorf("command %d of the pair: %v", i, st)
		}
	}
}
