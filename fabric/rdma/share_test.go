package rdma

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// inCapsuleWrite is a write of 512 bytes in the capsule.
func inCapsuleWrite(op nvme.Opcode, cid uint16) nvme.SQE {
	s := command(op, cid, 0, 512)
	s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 512)
	return s
}

// TestConnectionShares: a host that takes all connections it can get leaves another one its share,
// and admin queues the last ones.
func TestConnectionShares(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{MaxQueues: 64, MaxQueuesPerHost: 64}})
	take := func(host uint64) (n int) {
		for {
			q := b.host.connect(b.addr(), ioParam(8))
			st := q.do(command(opConnect, 1, 8|host<<32, 0), nil)
			if st == nvme.ConnectInvalidParameters {
				return n
			}
			testutil.MustTrue(t, st.OK() && n <= 64, "connection %d: %v", n, st)
			n++
		}
	}
	// A sixteenth of 64 is kept: 40 of 60, and 13 of the 20 that are left.
	if one, two := take(1), take(2); one != 40 || two != 13 {
		t.Errorf("%d and %d connections", one, two)
	}
	u := b.tr.Usage()
	testutil.True(t, u.OverShare == 2, "%d refused because of a share", u.OverShare)
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opConnect, 1, 8, 0), nil), nvme.Success, "an admin queue")
}

// One host with all its commands in a namespace that hangs, and without memory to copy their data,
// leaves receives for 31 others, even if one command of each of them hangs.
func TestSRQShares(t *testing.T) {
	const others = 31
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots}})
	var taken []mem.Segment
	b.on(func() { taken, _ = b.arena.Alloc(nil, b.arena.Available()) })
	data := make([]byte, 512)
	hog := b.host.connect(b.addr(), ioParam(srqSlabSlots))
	var qs []*hostQueue
	for range others {
		qs = append(qs, b.host.connect(b.addr(), ioParam(32)))
	}
	posted := func() (n int) {
		b.on(func() { n = b.g.one(t).recv.posted })
		return n
	}
	for cid := range uint16(srqSlabSlots) {
		s := inCapsuleWrite(opHoldWrite, cid)
		hog.send(&s, data)
	}
	testutil.Until(t, "all commands of the host have come",
		func() bool { return b.h.Executed.Load() == srqSlabSlots })
	n := posted() // after the step that executes the last one
	held := int(b.h.Holding.Load())
	if held+n != srqSlabSlots || n < srqSlabSlots/4-1 {
		t.Fatalf("%d commands hang, and %d receives are left for others", held, n)
	}
	for i, q := range qs {
		testutil.Equal(t, q.do(inCapsuleWrite(opWrite, 1), data), nvme.Success, "host %d", i)
		held := b.h.Holding.Load()
		s := inCapsuleWrite(opHoldWrite, 2)
		q.send(&s, data)
		testutil.Until(t, "its share", func() bool { return b.h.Holding.Load() == held+1 })
	}
	for i, q := range qs {
		testutil.Equal(t, q.do(inCapsuleWrite(opHoldWrite, 3), data), nvme.CommandInterrupted,
			"host %d, beyond its share", i)
		testutil.Equal(t, q.do(q.keyed(command(opNothing, 4, 0, 0), 0, 0), nil), nvme.Success,
			"host %d, which needs no slot", i)
	}
	testutil.True(t, posted() != 0, "no receive is left")
	b.on(func() { b.arena.Free(taken) })
	b.letGo()
}

// The same for commands with lists of descriptors, which wait for memory in their slots, and for
// capsules that wait because their host takes no responses.
func TestSRQSharesOfLists(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots}})
	var taken []mem.Segment
	b.on(func() { taken, _ = b.arena.Alloc(nil, b.arena.Available()) })
	hog := b.host.connect(b.addr(), ioParam(srqSlabSlots))
	other := b.host.connect(b.addr(), ioParam(32))
	pieces, n := scatter(512, 512)
	for cid := range uint16(srqSlabSlots) {
		s, list := hog.listed(command(opWrite, cid, 0, uint32(n)), 0, pieces)
		hog.send(&s, list)
	}
	for range srqSlabSlots / 4 {
		if cqe, _, ok := hog.response(); !ok || cqe.Status() != nvme.CommandInterrupted {
			t.Fatalf("%v, %v", cqe.Status(), ok)
		}
	}
	testutil.Equal(t, other.do(inCapsuleWrite(opWrite, 1), make([]byte, 512)), nvme.Success,
		"another host")
	b.on(func() { b.arena.Free(taken) })
}

func TestSRQShareOfHostWithoutReceives(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots}})
	hold := b.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpSend, Hold: true, Times: -1,
	})
	hog := b.host.connect(b.addr(), ioParam(srqSlabSlots))
	other := b.host.connect(b.addr(), ioParam(32))
	for range 2 {
		for cid := range uint16(srqSlabSlots) {
			s := command(opNothing, cid, 0, 0)
			hog.send(&s, nil)
		}
	}
	b.host.event(verbs.EventDisconnected)
	hold.Release()
	testutil.True(t, strings.Contains(b.log.String(), errShare.Error()),
		"the log has no reason:\n%s", b.log)
	testutil.Equal(t, other.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "another host")
}
