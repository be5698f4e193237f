package rdma

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/admission"
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
			testutil.True(t, len(s.recv.slabs)*srqSlabSlots == slots && s.recv.posted == slots &&
				s.commands == commands, "%d slots, %d posted for %d commands; want %d for %d",
				len(s.recv.slabs)*srqSlabSlots, s.recv.posted, s.commands, slots, commands)
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
			SRQSize: 4 * srqSlabSlots,
			Limits: admission.Limits{
				Memory: int64(slabSize(srqSlabSlots, 4096, 0)) + 64<<10,
			},
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

// inCapsuleWrite is a write of 512 bytes in the capsule.
func inCapsuleWrite(op nvme.Opcode, cid uint16) nvme.SQE {
	s := command(op, cid, 0, 512)
	s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 512)
	return s
}

// TestConnectionShares: a host that takes all connections it can get leaves another one its share,
// and admin queues the last ones.
func TestConnectionShares(t *testing.T) {
	b := newHarness(t, harnessOptions{
		cfg: Config{Limits: admission.Limits{Connections: 64, PerHost: 64}},
	})
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
	testutil.MustTrue(t, held+n == srqSlabSlots && n >= srqSlabSlots/4-1,
		"%d commands hang, and %d receives are left for others", held, n)
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

// If the device refuses any resource, the connection is rejected with "no resources", nothing is
// left over, and the next one works.
func TestNoResources(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		for _, call := range []verbstest.Call{
			verbstest.CallAllocPD, verbstest.CallCreateCompChannel, verbstest.CallRegMR,
			verbstest.CallCreateCQ,
			verbstest.CallCreateQP, verbstest.CallAccept,
		} {
			for skip := 0; skip < 3; skip++ {
				if skip > 0 && call != verbstest.CallRegMR {
					continue
				}
				b := newHarness(t, o)
				b.f.FailCalls("target", call, skip, 1, nil)
				if skip == 2 && !o.fabric.IWARP { // there are two registrations
					b.f.FailCalls("target", call, 0, 0, nil)
				} else if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
					t.Errorf("%s fails: %v", call, st)
				}
				b.idle()
				q := b.host.connect(b.addr(), ioParam(8))
				testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success,
					"after %s failed", call)
				b.close()
			}
		}
	})
}

func TestHandlerRefuses(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.on(func() { b.h.Refuse = errors.New("no room for hosts") })
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(8)), cmwire.NoResources, "")
	testutil.Until(t, "the reason is reported",
		func() bool { return strings.Contains(b.log.String(), "no room for hosts") })
	b.idle()
}

func TestLimits(t *testing.T) {
	for name, l := range map[string]admission.Limits{
		"queues":          {Connections: 2},
		"queues per host": {PerHost: 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, harnessOptions{cfg: Config{Limits: l}})
			b.h.Unproven.Store(l.PerHost > 0)
			q := b.host.associate(b.addr(), ioParam(8))
			b.host.associate(b.addr(), ioParam(8))
			if l.PerHost > 0 { // it might prove its NQN
				over := b.host.connect(b.addr(), ioParam(8))
				st := over.do(command(opConnect, 1, 8, 0), nil)
				testutil.Equal(t, st, nvme.ConnectInvalidParameters, "")
				over.disconnect()
				b.host.event(verbs.EventDisconnected)
			} else if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
				t.Error(st)
			}
			q.disconnect()
			b.host.event(verbs.EventDisconnected)
			testutil.Until(t, "one is left", func() bool { return b.tr.Usage().Connections == 1 })
			b.host.connect(b.addr(), ioParam(8))
		})
	}
}

// Queues that do not fit into one completion queue get another one. A device without room for more
// refuses.
func TestCompletionQueuesFillUp(t *testing.T) {
	o := harnessOptions{setup: func(f *verbstest.Fabric) {
		d := verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1"))
		d.Attr.MaxCQE, d.Attr.MaxCQ = 64, 2
		f.AddHost("target", d)
	}}
	b := newHarness(t, o)
	p := ioParam(8) // 8 receives, 24 sends
	var qs []*hostQueue
	for range 4 {
		qs = append(qs, b.host.connect(b.addr(), p))
	}
	testutil.Equal(t, b.f.Live("target").CQs, 2, "completion queues for 4 queues")
	d := b.tr.Devices()
	testutil.True(t, len(d) == 1 && d[0].QueuePairs == 4 && d[0].CompletionQueues == 2 &&
		d[0].MaxCompletionQueues == 2 && d[0].MaxQueuePairs >= 4, "%+v", d)
	testutil.Equal(t, b.host.rejected(b.addr(), p), cmwire.NoResources, "")
	qs[0].disconnect()
	b.host.event(verbs.EventDisconnected)
	testutil.Until(t, "room", func() bool { return b.tr.Usage().Connections == 3 })
	qs = append(qs[1:], b.host.connect(b.addr(), p))
	for _, q := range qs {
		testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	}
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(100)), cmwire.NoResources,
		"a queue larger than any completion queue")
}

// With less memory than they need, commands take turns.
func TestMemoryIsShort(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		o.arena, o.cfg.StagingSize = 1<<20, 1<<20
		_, q := joined(t, o, ioParam(32))
		want := pattern(600<<10, 9)
		copy(q.buf, want)
		const n = 600 << 10
		for i := range 16 {
			s := q.keyed(command(opWrite, uint16(i), 0, n), 0, n)
			if i%2 == 1 {
				s = q.keyed(command(opRead, uint16(i), 0, n), 1<<20, n)
			}
			q.send(&s, nil)
		}
		for range 16 {
			if cqe, _, ok := q.response(); !ok || !cqe.Status().OK() {
				t.Fatalf("%v %v", cqe.Status(), ok)
			}
		}
		if st := q.do(q.keyed(command(opRead, 1, 0, n), 2<<20, n), nil); !st.OK() ||
			!bytes.Equal(q.buf[2<<20:2<<20+n], want) {
			t.Errorf("read back: %v", st)
		}
	})
}

func TestMemoryNeverComes(t *testing.T) {
	b, q := joined(t, harnessOptions{arena: 1 << 20}, ioParam(32))
	s := q.keyed(command(opHoldWrite, 1, 0, 1<<20), 0, 1<<20)
	q.send(&s, nil)
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
	s = q.keyed(command(opRead, 2, 0, 4096), 0, 4096)
	q.send(&s, nil)
	testutil.Until(t, "the command waits", func() (waits bool) {
		b.on(func() { waits = b.g.cfg.Memory.HasWaiters() })
		return waits
	})
	b.later(b.tr.cfg.MemoryTimeout + time.Second)
	cqe, _, ok := q.response()
	testutil.True(t, ok && cqe.CID() == 2 && cqe.Status() == nvme.CommandInterrupted, "%v %v %v",
		cqe.CID(), cqe.Status(), ok)
	b.letGo()
	cqe, _, ok = q.response()
	testutil.True(t, ok && cqe.Status().OK(), "%v %v", cqe.Status(), ok)
}

// The narrowest device: few work requests, one element each, one READ at once, and no inline data.
func TestNarrowDevice(t *testing.T) {
	o := harnessOptions{setup: func(f *verbstest.Fabric) {
		d := verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1"))
		d.Attr.MaxQPWR, d.Attr.MaxSGE, d.Attr.MaxSGERD, d.Attr.MaxQPInitRdAtom = 8, 2, 1, 1
		d.MaxInline = -1
		f.AddHost("target", d)
	}}
	b := newHarness(t, o)
	p := ioParam(8)
	p.hrqsize = 2
	q := b.host.connect(b.addr(), p)
	// Every other page is allocated, so a transfer of 2 MiB has hundreds of segments.
	b.on(func() { b.fragment() })
	want := pattern(1<<20, 5)
	copy(q.buf, want)
	for round := range 4 {
		for i := range 8 {
			s := q.keyed(command(opWrite, uint16(i), uint64(i)*128<<10, 128<<10), i*128<<10,
				128<<10)
			if round%2 == 1 {
				s = q.keyed(command(opRead, uint16(i), uint64(i)*128<<10, 128<<10), 2<<20+i*128<<10,
					128<<10)
			}
			q.send(&s, nil)
		}
		for range 8 {
			cqe, _, ok := q.response()
			testutil.MustTrue(t, ok && cqe.Status().OK(), "%v %+v", cqe.Status(), q.bad)
		}
	}
	testutil.True(t, bytes.Equal(q.buf[2<<20:3<<20], want), "other data came back")
	b.on(b.defragment)
}

// Writes beyond the READ depth of the host wait, in order, for any number of work requests per
// write. None fails.
func TestReadDepth(t *testing.T) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		t.Run(name, func(t *testing.T) {
			p := ioParam(32)
			p.reads = 3
			m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, p)
			reads := m.f.Inject(verbstest.Fault{
				Host: "target", Ops: verbstest.OpRead, Hold: true,
				Times: -1,
			})
			const n = 8
			for i := range n {
				s := m.host.keyed(command(opWrite, uint16(i), 0, 64<<10), i*64<<10, 64<<10)
				m.host.send(&s, nil)
			}
			most := 0
			look := func() {
				inFlight := m.q.maxReads - m.q.reads
				most = max(most, inFlight)
				testutil.MustTrue(t, m.q.maxReads == 3 && inFlight >= 0 && inFlight <= 3,
					"%d of %d READs in flight", inFlight, m.q.maxReads)
			}
			m.turn()
			look()
			testutil.True(t, !m.q.toRead.Empty(), "no write waits")
			reads.Release()
			m.until(t, func() bool { look(); return m.h.Completed.Load() == n })
			for range n {
				cqe, _, ok := m.host.response()
				testutil.MustTrue(t, ok && cqe.Status().OK(), "%v, %+v", cqe.Status(), m.host.bad)
			}
			testutil.True(t, most == 3, "at most %d READs were in flight", most)
		})
	}
}

// A queue of the largest depth takes that many commands at once.
func TestDeepest(t *testing.T) {
	b, q := joined(t, harnessOptions{cfg: Config{MaxDepth: DepthLimit}}, ioParam(DepthLimit))
	testutil.MustEqual(t, q.do(command(opConnect, 1, DepthLimit, 0), nil), nvme.Success, "")
	for i := range DepthLimit {
		s := command(opHold, uint16(i), 0, 0)
		q.send(&s, nil)
		if i%256 == 255 { // the SENDs free their entries
			free := 0
			soon(t, "the SENDs complete", func() bool {
				free += testutil.Value(q.cq.Poll(make([]verbs.WC, 512)))(t)
				return free >= 256
			})
		}
	}
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == DepthLimit })
	b.letGo()
	seen := make(map[uint16]bool)
	for range DepthLimit {
		cqe, _, ok := q.response()
		testutil.MustTrue(t, ok, "%+v", q.bad)
		seen[cqe.CID()] = true
	}
	testutil.Equal(t, len(seen), DepthLimit, "different responses")
}

// TestTable: IDs are not reused when numbers are.
func TestTable(t *testing.T) {
	var tab table[int]
	vs := [3]int{}
	a, b := tab.add(&vs[0]), tab.add(&vs[1])
	for kind := range workData {
		testutil.True(t, tab.find(workID(kind, a, 0xFFFF)) == &vs[0] &&
			tab.find(workID(kind, b, 1)) == &vs[1], "not found")
	}
	tab.remove(a)
	testutil.True(t, tab.find(a) == nil && tab.len() == 1, "found although it was removed")
	c := tab.add(&vs[2])
	testutil.True(t, uint16(c>>16) == uint16(a>>16) && tab.find(a) == nil && tab.find(c) == &vs[2],
		"IDs %#x and %#x of one number", a, c)
	for v := range tab.all() { // elements may be removed in the loop
		tab.remove(b)
		testutil.True(t, v != &vs[1], "yielded although it was removed")
	}
	tab.remove(c)
	tab.entries[0].gen = genMask // the generation wraps
	d := tab.add(&vs[0])
	testutil.True(t, d>>56 == 0 && tab.find(d) == &vs[0], "ID %#x", d)
}

// Buffers that were handed over belong to the handler: the command is answered, its slot serves
// other commands, the queue ends, and the memory stays unchanged until it is freed. On iWARP it is
// staging memory. A receive slot cannot be handed over.
func TestHandOverBuffers(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(8))
		s := q.keyed(command(opHoldWrite, 1, 0, 8192), 0, 8192)
		q.send(&s, nil)
		testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
		var free func()
		var handed []byte
		b.on(func() {
			r := b.h.Held[0]
			b.h.Held = nil
			handed = r.Segs[0].B
			for i := range handed {
				handed[i] = 77
			}
			free = r.Queue.HandOverBuffers(r)
			testutil.True(t, free != nil && len(r.Segs) == 0, "the memory is still the request's")
			b.h.Complete(r, nvme.InternalPathError, 0)
		})
		if cqe, _, ok := q.response(); !ok || cqe.Status() != nvme.InternalPathError {
			t.Errorf("response %v %v", cqe.Status(), ok)
		}
		for i := range uint16(20) {
			testutil.Equal(t, q.do(q.keyed(command(opWrite, 2+i, 0, 8192), 0, 8192), nil),
				nvme.Success, "")
		}
		slot := command(opHoldWrite, 50, 0, 512)
		slot.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 512)
		q.send(&slot, make([]byte, 512))
		testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
		b.on(func() {
			if r := b.h.Held[0]; r.Queue.HandOverBuffers(r) != nil || len(r.Segs) != 1 {
				t.Error("a slot was given away")
			}
		})
		b.letGo()
		_, _, ok := q.response()
		testutil.True(t, ok, "no response")
		q.disconnect()
		testutil.Until(t, "the queue ends", func() bool { return b.tr.Usage().Connections == 0 })
		for i, v := range handed {
			if v != 77 {
				t.Errorf("byte %d of memory that was handed over was used by others", i)
				break
			}
		}
		b.on(free)
		b.idle()
	})
}
