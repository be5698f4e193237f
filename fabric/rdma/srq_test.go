package rdma

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// testSRQSize is the default of Config.SRQSize in tests.
var testSRQSize int

// Everything also holds when queues share receives.
func TestSRQReceives(t *testing.T) {
	testSRQSize = 4 * srqSlabSlots
	defer func() { testSRQSize = 0 }()
	for name, fn := range map[string]func(*testing.T){
		"AsyncEventsOfQueuePairs":     TestAsyncEventsOfQueuePairs,
		"AsyncEventOfCompletionQueue": TestAsyncEventOfCompletionQueue,
		"AsyncDeviceFatal":            TestAsyncDeviceFatal, "ReadDepth": TestReadDepth,
		"CapsuleBeforeEstablished": TestCapsuleBeforeEstablished,
		"Deadlines":                TestDeadlines,
		"DisconnectInEveryState":   TestDisconnectInEveryState,
		"TargetDisconnects":        TestTargetDisconnects,
		"ShutdownAnswers":          TestShutdownAnswers, "Offenders": TestOffenders,
		"QueuePairFails": TestQueuePairFails, "FailedWork": TestFailedWork,
		"CompletionQueueFails": TestCompletionQueueFails,
		"HostWithoutReceives":  TestHostWithoutReceives, "HostVanishes": TestHostVanishes,
		"HandlerRefuses": TestHandlerRefuses, "Limits": TestLimits,
		"DeviceRemoval": TestDeviceRemoval, "MemoryIsShort": TestMemoryIsShort,
		"MemoryNeverComes": TestMemoryNeverComes, "ManyConnections": TestManyConnections,
		"InvalidateFoundOut": TestInvalidateFoundOut, "DestroyFails": TestDestroyFails,
		"RegisteredByChunk": TestRegisteredByChunk, "ZeroCopyDisconnect": TestZeroCopyDisconnect,
		"SignaledWrites":               TestSignaledWrites,
		"NothingIsAllocatedPerCommand": TestNothingIsAllocatedPerCommand,
		"ReadsAndWrites":               TestReadsAndWrites,
		"InCapsuleData":                TestInCapsuleData, "Descriptors": TestDescriptors,
		"FailedReadSendsNoData": TestFailedReadSendsNoData,
		"RemoteInvalidate":      TestRemoteInvalidate, "ZeroCopy": TestZeroCopy,
		"Rejects": TestRejects, "QueueInfo": TestQueueInfo,
		"SetDepth": TestSetDepth, "Lists": TestLists, "ListsInParts": TestListsInParts,
		"ListsRefused":         TestListsRefused,
		"ListsOnTheAdminQueue": TestListsOnTheAdminQueue, "ListInvalidate": TestListInvalidate,
		"ListsAllocateNothing": TestListsAllocateNothing,
	} {
		t.Run(name, fn)
	}
}

// one returns the only shared receive queue of a group.
func (g *group) one(t *testing.T) *srq {
	t.Helper()
	for s := range g.srqs.all() {
		return s
	}
	t.Fatal("no shared receive queue")
	return nil
}

// Slots are made as queues come, up to the capacity, and all of them are posted when the queues are
// idle.
func TestSRQSlots(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: 2 * srqSlabSlots}})
	look := func(slots, commands int) {
		t.Helper()
		b.on(func() {
			s := b.g.one(t)
			if len(s.recv.slabs)*srqSlabSlots != slots || s.recv.posted != slots ||
				s.commands != commands {
				t.Errorf("%d slots, %d posted for %d commands; want %d for %d",
					len(s.recv.slabs)*srqSlabSlots, s.recv.posted, s.commands, slots, commands)
			}
		})
		testutil.Equal(t, b.f.Live("target").SRQs, 1, "shared receive queues")
	}
	b.host.connect(b.addr(), adminParam())
	look(srqSlabSlots, 32)
	var qs []*hostQueue
	for i, want := range []int{1, 2, 2} {
		qs = append(qs, b.host.connect(b.addr(), ioParam(96)))
		look(want*srqSlabSlots, 32+96*(i+1))
	}
	for cid := range uint16(96) {
		for _, q := range qs {
			testutil.MustEqual(t, q.do(command(opNothing, cid, 0, 0), nil), nvme.Success, "")
		}
	}
	look(2*srqSlabSlots, 32+3*96)
	for _, q := range qs {
		q.disconnect()
		b.host.event(verbs.EventDisconnected)
	}
	testutil.Until(t, "one queue", func() bool { return b.tr.Usage().Connections == 1 })
	look(2*srqSlabSlots, 32)
}

// A queue that ends gives back the slots of its lists of descriptors.
func TestSRQSlotsOfLists(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots}})
	b.host.connect(b.addr(), ioParam(8)) // the SRQ stays
	q := b.host.connect(b.addr(), ioParam(8))
	var taken []mem.Segment
	b.on(func() { taken, _ = b.arena.Alloc(nil, b.arena.Available()) })
	pieces, n := scatter(512, 512)
	for cid := range uint16(4) {
		s, list := q.listed(command(opWrite, cid, 0, uint32(n)), 0, pieces)
		q.send(&s, list)
	}
	testutil.Until(t, "all wait for memory", func() bool { return b.h.Prepared.Load() == 4 })
	q.disconnect()
	testutil.Until(t, "one queue", func() bool { return b.tr.Usage().Connections == 1 })
	b.on(func() {
		b.arena.Free(taken)
		if r := &b.g.one(t).recv; r.posted+len(r.free) != srqSlabSlots {
			t.Errorf("%d of %d slots are left", r.posted+len(r.free), srqSlabSlots)
		}
	})
}

// A host that sends more than its depth ends its queue, and no other.
func TestSRQDepthIsEnforced(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots}})
	good, other := b.host.connect(b.addr(), ioParam(8)), b.host.connect(b.addr(), ioParam(4))
	for cid := range uint16(5) {
		s := command(opHold, cid, 0, 0)
		other.send(&s, nil)
	}
	b.host.event(verbs.EventDisconnected)
	testutil.Until(t, "its queue ends",
		func() bool {
			return strings.Contains(b.log.String(), "more commands than the queue's depth, 4")
		})
	testutil.Until(t, "the handler has them", func() bool { return b.h.Holding.Load() == 4 })
	testutil.Equal(t, good.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	b.letGo()
	testutil.Until(t, "one queue", func() bool { return b.tr.Usage().Connections == 1 })
	b.on(func() {
		if s := b.g.one(t); s.recv.posted != srqSlabSlots {
			t.Errorf("%d of %d receives are posted", s.recv.posted, srqSlabSlots)
		}
	})
}

// When hosts may send more than there are slots and few are left, in-capsule data moves to other
// memory. Without such memory it stays.
func TestSRQShortage(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{SRQSize: srqSlabSlots, MaxDepth: 200},
		ioParam(200))
	data := pattern(512, 3)
	write := func(cid uint16, op nvme.Opcode, off uint64) {
		s := command(op, cid, off, 512)
		s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 512)
		m.host.send(&s, data)
		m.turn()
	}
	free := m.g.cfg.Memory.Available()
	for cid := range uint16(100) {
		write(cid, opHoldWrite, 0)
	}
	moved := (free - m.g.cfg.Memory.Available()) / 4096
	if s := m.q.srq; moved != 4 || s.recv.posted != srqSlabSlots-96 { // the last quarter, 32, stays
		t.Errorf("%d of 100 commands' data moved away, %d receives are posted", moved,
			s.recv.posted)
	}
	write(100, opWrite, 4096)
	testutil.True(t, bytes.Equal(m.h.Region.Bytes()[4096:4096+512], data),
		"data that moved away is wrong")
	var memory mem.Allocation
	m.g.cfg.Memory.AllocReserve(&memory, nil, m.g.cfg.Memory.Available())
	write(101, opWrite, 8192)
	testutil.True(t, bytes.Equal(m.h.Region.Bytes()[8192:8192+512], data),
		"data that stayed is wrong")
	memory.Free()
	m.h.Release()
	m.until(t, func() bool {
		return m.q.recv.posted == srqSlabSlots && m.g.cfg.Memory.Available() == free
	})
}

// A host with capsules that find no receive waits and is served.
func TestSRQOvercommitted(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots, MaxDepth: 256}})
	q := b.host.connect(b.addr(), ioParam(256))
	for i := range 256 {
		s := command(opWrite, uint16(i), 0, 512)
		s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 512)
		q.send(&s, make([]byte, 512))
	}
	for range 256 {
		cqe, _, ok := q.response()
		testutil.MustTrue(t, ok && cqe.Status().OK(), "%v, %+v", cqe.Status(), q.bad)
	}
}

// Devices without SRQ support, and iWARP, have receives per queue. The log reports that once.
func TestSRQFallsBack(t *testing.T) {
	for name, o := range map[string]harnessOptions{
		"iwarp": {fabric: verbstest.Options{IWARP: true}},
		"none": {setup: func(f *verbstest.Fabric) {
			d := verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1"))
			d.Attr.MaxSRQ = 0
			f.AddHost("target", d)
		}},
		"failing": {setup: func(f *verbstest.Fabric) {
			f.AddHost("target", verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1")))
			f.FailCalls("target", verbstest.CallCreateSRQ, 0, 1, unix.ENOSYS)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o.cfg.SRQSize = srqSlabSlots
			b := newHarness(t, o)
			for range 2 {
				q := b.host.connect(b.addr(), ioParam(8))
				testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
			}
			testutil.Equal(t, b.f.Live("target").SRQs, 0, "shared receive queues")
			n := strings.Count(b.log.String(), "do not share receives")
			testutil.True(t, n == 1, "said %d times:\n%s", n, b.log)
			if got, want := b.tr.Usage().Memory, int64(2*slabSize(8, 4096, 8*16)); got != want {
				t.Errorf("%d bytes are counted, want %d", got, want)
			}
		})
	}
}

// The memory of slots counts, and is given back.
func TestSRQMemoryIsBounded(t *testing.T) {
	b := newHarness(t,
		harnessOptions{cfg: Config{
			SRQSize:     4 * srqSlabSlots,
			QueueMemory: int64(slabSize(srqSlabSlots, 4096, 0)) + 64<<10,
		}})
	q := b.host.connect(b.addr(), ioParam(100))
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(100)), cmwire.NoResources, "")
	b.host.connect(b.addr(), ioParam(28)) // its slots are there
	q.disconnect()
	b.host.event(verbs.EventDisconnected)
	testutil.Until(t, "one connection", func() bool { return b.tr.Usage().Connections == 1 })
	b.host.connect(b.addr(), ioParam(100))
}

// An error of the shared receive queue ends its queues; the next ones get another, also after many
// queues have ended.
func TestSRQIsReplaced(t *testing.T) {
	b, q := joined(t, harnessOptions{cfg: Config{SRQSize: srqSlabSlots}}, ioParam(8))
	b.on(func() {
		b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncSRQErr, SRQ: b.g.one(t).SRQ})
	})
	b.host.event(verbs.EventDisconnected)
	testutil.True(t, strings.Contains(b.log.String(), errSRQ.Error()), "the log has no reason:\n%s",
		b.log)
	q.free()
	b.idle()
	stays := b.host.connect(b.addr(), ioParam(8))
	for i := range srqSlabSlots/8 + 1 {
		want := 1
		if i == srqSlabSlots/8 {
			want = 2
		}
		q := b.host.connect(b.addr(), ioParam(8))
		testutil.MustEqual(t, b.f.Live("target").SRQs, want,
			"shared receive queues after %d ends", i)
		testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		q.disconnect()
		b.host.event(verbs.EventDisconnected)
		testutil.Until(t, "the queue ends", func() bool { return b.tr.Usage().Connections == 1 })
		q.free()
	}
	testutil.Equal(t, stays.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	testutil.Until(t, "SRQs are freed", func() bool { return b.f.Live("target").SRQs == 1 })
}

// A device that does not report the last receive delays a queue only up to the time limit.
func TestSRQWithoutLastEvent(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{SRQSize: srqSlabSlots}, ioParam(8))
	m.g.asyncEvent(m.q.p.dev,
		verbs.AsyncEvent{Type: verbs.AsyncQPLastWQEReached, QPNum: m.q.qp.Num() + 1})
	testutil.True(t, !m.q.recvsEnded && !m.q.failed, "an event of another queue pair was taken")
	m.q.state, m.q.flushed = queueDraining, true
	if m.q.checkDrained(); m.q.state != queueDraining {
		t.Error("the queue pair is destroyed although it may take receives")
	}
	m.q.state, m.q.flushed = queueLive, false
	m.g.asyncEvent(m.q.p.dev,
		verbs.AsyncEvent{Type: verbs.AsyncQPLastWQEReached, QPNum: m.q.qp.Num()})
	testutil.True(t, m.q.recvsEnded && errors.Is(m.q.reason, errFlushed),
		"the event did not end the queue: %v", m.q.reason)
}

func TestSRQStaleCompletions(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{SRQSize: srqSlabSlots}, ioParam(8))
	s := m.q.srq
	for _, id := range []uint64{
		workID(workSRQRecv, s.id+1<<32, 0), workID(workSRQRecv, s.id+1<<16, 0),
	} {
		m.g.completed(&verbs.WC{WRID: id, QPNum: m.q.qp.Num(), Status: verbs.WCGeneralErr})
	}
	testutil.True(t, !m.q.failed && s.recv.posted == srqSlabSlots,
		"a completion of other receives was taken")
}
