package rdma

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A fault of a host ends its queue and no other.
func TestOffenders(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, good := joined(t, o, ioParam(8))
		tests := map[string]func(q *hostQueue){
			"short capsule": func(q *hostQueue) { q.sendBytes(make([]byte, 63), nil) },
			"empty capsule": func(q *hostQueue) { q.sendBytes(nil, nil) },
			"long capsule": func(q *hostQueue) {
				q.sendBytes(make([]byte, 64), make([]byte, 4097))
			},
			"foreign key of a write": func(q *hostQueue) {
				s := command(opWrite, 1, 0, 512)
				s.SGL1().SetKeyed(0, 0x1000, 512, 0xDEAD)
				q.send(&s, nil)
			},
			"address of a read": func(q *hostQueue) {
				s := q.keyed(command(opRead, 1, 0, 512), 8<<20-511, 512)
				q.send(&s, nil)
			},
		}
		for name, offend := range tests {
			q := b.host.connect(b.addr(), ioParam(8))
			executed := b.h.Executed.Load()
			offend(q)
			b.host.event(verbs.EventDisconnected)
			testutil.True(t, b.h.Executed.Load() == executed || name == "address of a read",
				"%s: the handler got something", name)
			q.free()
			testutil.Equal(t, good.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "after %s",
				name)
		}
	})
}

func TestQueuePairFails(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b := newHarness(t, o)
		hold := b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpRead, Hold: true})
		q := b.host.connect(b.addr(), ioParam(8))
		s := q.keyed(command(opWrite, 1, 0, 4096), 0, 4096)
		q.send(&s, nil)
		testutil.Until(t, "reading", func() bool { return hold.Fired() == 1 })
		var num uint32
		b.on(func() { num = b.g.first().qp.Num() })
		testutil.MustTrue(t, b.f.FailQP("target", num), "no such queue pair")
		b.idle()
		testutil.True(t, b.h.Abandoned.Load() == 1 && b.h.Executed.Load() == 0,
			"a write whose data did not come was not abandoned")
	})
}

func TestFailedWork(t *testing.T) {
	for name, f := range map[string]verbstest.Fault{
		"lost READ":       {Ops: verbstest.OpRead, Drop: true},
		"lost WRITE":      {Ops: verbstest.OpWrite, Drop: true},
		"failed WRITE":    {Ops: verbstest.OpWrite, Fail: verbs.WCRemAccessErr},
		"failed response": {Ops: verbstest.OpSend, Fail: verbs.WCRetryExcErr},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, harnessOptions{})
			f.Host = "target"
			b.f.Inject(f)
			q := b.host.connect(b.addr(), ioParam(8))
			for i, op := range []nvme.Opcode{opWrite, opRead} {
				s := q.keyed(command(op, uint16(i), 0, 4096), 0, 4096)
				q.send(&s, nil)
			}
			b.idle()
			testutil.True(t, strings.Contains(b.log.String(), "failed: "),
				"no reason in the log:\n%s", b.log)
		})
	}
}

// A completion queue that fails takes its queues with it; the next connection gets another one.
func TestCompletionQueueFails(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(8))
	b.host.connect(b.addr(), ioParam(8))
	s := command(opHold, 1, 0, 0)
	q.send(&s, nil)
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
	b.f.FailCQs("target")
	b.on(func() {}) // awake
	b.letGo()
	b.idle()
	b.host.event(verbs.EventDisconnected)
	b.host.event(verbs.EventDisconnected)
	q = b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}

// If the host posts no receives, only its queue is affected, and ends after a time.
func TestHostWithoutReceives(t *testing.T) {
	for name, retry := range map[string]uint8{"few retries": 1, "unlimited retries": 7} {
		t.Run(name, func(t *testing.T) {
			b, good := joined(t, harnessOptions{}, ioParam(8))
			p := ioParam(8)
			p.recvs, p.rnrRetry = -1, retry
			q := b.host.connect(b.addr(), p)
			s := command(opNothing, 1, 0, 0)
			q.send(&s, nil)
			if retry == 7 {
				b.stick()
			}
			b.host.event(verbs.EventDisconnected)
			testutil.Equal(t, good.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		})
	}
}

// A host vanishes silently: the first response that is not acknowledged ends the queue.
func TestHostVanishes(t *testing.T) {
	b, q := joined(t, harnessOptions{fabric: verbstest.Options{CMTimeout: time.Hour}}, ioParam(8))
	s := command(opHold, 1, 0, 0)
	q.send(&s, nil)
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
	b.f.Cut("host", "target")
	b.letGo()
	testutil.Until(t, "closed", func() bool {
		b.f.ExpireCM()
		b.f.Advance(time.Second)
		return b.h.Closed.Load() == 1
	})
	b.idle()
}

// A removed device ends its queues and its listener, which can be opened again.
func TestDeviceRemoval(t *testing.T) {
	lost := make(chan uint16, 1)
	b := newHarness(t, harnessOptions{cfg: Config{Lost: func(portID uint16) { lost <- portID }}})
	q := b.host.connect(b.addr(), ioParam(8))
	s := command(opHold, 1, 0, 0)
	q.send(&s, nil)
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
	addrs := b.f.Addrs("target")
	testutil.MustTrue(t, b.f.RemoveDevice("target", "roce0"), "no device")
	testutil.Until(t, "closed", func() bool { return b.h.Closed.Load() == 1 })
	b.letGo()
	b.idle()
	testutil.Until(t, "everything is free", func() bool {
		live := b.f.Live("target")
		live.CMs = 0
		return live == verbstest.Counts{}
	})
	b.f.AddHost("target", verbstest.RoCE("roce0", addrs...))
	portID := testutil.Receive(t, "the loss", lost)
	testutil.Check(t, b.l.Close())
	var err error
	b.l, err = b.tr.Listen(b.l.Addr(), portID, b.adopt)
	testutil.MustTrue(t, err == nil, "%v", err)
	b.host.event(verbs.EventDisconnected)
	q.free()
	q = b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}

func TestListenerClosedWhileDeviceIsAway(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.f.RemoveDevice("target", "roce0")
	testutil.Until(t, "noticed",
		func() bool { return strings.Contains(b.log.String(), "lost its device") })
	testutil.Check(t, b.l.Close())
}

// A host may send as soon as it is connected, even if its last message of connection establishment
// comes late or is lost.
func TestCapsuleBeforeEstablished(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.f.DropMessages("host", verbstest.MessageRTU, -1)
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.MustEqual(t, q.do(command(opConnect, 1, 8, 0), nil), nvme.Success, "")
	b.later(time.Hour) // but not the deadline, which a Connect command lifts
	testutil.Equal(t, q.do(command(opNothing, 2, 0, 0), nil), nvme.Success, "")
}

func TestDeadlines(t *testing.T) {
	for name, drop := range map[string]bool{"not established": true, "no Connect command": false} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, harnessOptions{})
			if drop {
				b.f.DropMessages("target", verbstest.MessageREP, 1)
			}
			q := b.host.dial(b.addr(), adminParam())
			q.request(adminParam())
			state, want := queueLive, errNoConnect
			if drop {
				state, want = queueOpening, errNotEstablished
			}
			testutil.Until(t, "open", func() (ok bool) {
				b.on(func() { ok = b.g.queues.len() == 1 && b.g.first().state == state })
				return ok
			})
			b.later(time.Hour)
			b.idle()
			testutil.True(t, strings.Contains(b.log.String(), want.Error()), "log without %q:\n%s",
				want, b.log)
			const line = `msg="RDMA handshake not completed" remote=`
			if log := b.log.String(); strings.Contains(log, line) != drop || drop &&
				!(strings.Contains(log, " local=") && strings.Contains(log, " device=")) {
				t.Errorf("log with %q: %v, want %v:\n%s", line, !drop, drop, log)
			}
		})
	}
}

// The end of a queue frees everything, once, with commands in every state.
func TestDisconnectInEveryState(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		o.arena = 1<<20 + 64<<10
		o.cfg = Config{StagingSize: 1 << 20, DrainTimeout: time.Hour}
		b := newHarness(t, o)
		reads := b.f.Inject(verbstest.Fault{
			Host: "target", Ops: verbstest.OpRead, Hold: true,
			Times: -1,
		})
		sends := b.f.Inject(verbstest.Fault{
			Host: "target", Ops: verbstest.OpSend, Skip: 1,
			Hold: true, Times: -1,
		})
		q := b.host.connect(b.addr(), ioParam(32))
		testutil.MustEqual(t, q.do(command(opNothing, 0, 0, 0), nil), nvme.Success, "")
		for i, s := range []nvme.SQE{
			q.keyed(command(opHoldRead, 1, 0, 4096), 0, 4096),
			q.keyed(command(opWrite, 2, 0, 512<<10), 0, 512<<10),
			q.keyed(command(opWrite, 3, 0, 512<<10), 0, 512<<10),
			q.keyed(command(opWrite, 4, 0, 512<<10), 0, 512<<10), // waits for memory
			q.keyed(command(opZeroCopyWrite, 5, 0, 512<<10), 0, 512<<10),
			command(opNothing, 6, 0, 0), // its response is held
			command(opNothing, 7, 0, 0),
		} {
			q.send(&s, nil)
			testutil.Until(t, "prepared", func() bool { return b.h.Prepared.Load() == int64(i+2) })
		}
		testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
		q.disconnect()
		testutil.Until(t, "closed", func() bool { return b.h.Closed.Load() == 1 })
		reads.Release()
		sends.Release()
		testutil.Until(t, "the queue pair is destroyed",
			func() bool { return b.f.Live("target").QPs == 0 })
		testutil.Until(t, "the queue waits for the request that the handler has", func() (ok bool) {
			b.on(func() { ok = b.g.queues.len() == 1 && b.g.first().state == queueDestroyed })
			return ok
		})
		b.letGo()
		b.idle()
		testutil.Equal(t, b.h.Abandoned.Load(), 4, "requests were abandoned")
	})
}

func TestTargetDisconnects(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, adminParam())
		s := command(opHold, 1, 0, 0)
		q.send(&s, nil)
		if st := q.do(command(opLeave, 2, 0, 0), nil); !st.OK() { // its response still comes
			t.Fatal(st)
		}
		b.host.event(verbs.EventDisconnected)
		b.letGo()
		b.idle()
	})
}

// I/O that is in flight when the target shuts down is answered.
func TestShutdownAnswers(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(8))
	s := q.keyed(command(opHoldWrite, 1, 0, 512), 0, 512)
	q.send(&s, nil)
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
	done := make(chan struct{})
	b.on(func() { b.g.Shutdown(func() { close(done) }) })
	b.letGo()
	cqe, _, ok := q.response()
	testutil.True(t, ok && cqe.Status().OK(), "response %v %v", cqe.Status(), ok)
	<-done
	b.host.event(verbs.EventDisconnected)
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(8)), cmwire.NoResources,
		"a connection during shutdown")
}

func TestManyConnections(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		o.cfg.DrainTimeout = 50 * time.Millisecond // soft iWARP forgets late completions
		b := newHarness(t, o)
		for i := range 50 {
			q := b.host.connect(b.addr(), ioParam(16))
			for j := range 8 {
				s := q.keyed(command(nvme.Opcode(1+j%2), uint16(j), 0, 8192), 0, 8192)
				q.send(&s, nil)
			}
			if i%2 == 0 {
				q.disconnect()
				b.host.event(verbs.EventDisconnected)
			}
			q.free()
		}
		b.idle()
		live := b.f.Live("target")
		testutil.True(t, live.QPs == 0 && live.IDs == 1 && live.CQs == 1,
			"after 50 connections: %+v", live)
	})
}

// TestHostGivesUpWhileConnecting: a host that gives up before its connection is established leaves
// nothing behind, and disturbs no other host (R10, R12).
func TestHostGivesUpWhileConnecting(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, good := joined(t, o, ioParam(8))
		testutil.MustEqual(t, good.do(command(opConnect, 1, 8, 0), nil), nvme.Success, "")
		one := b.f.Live("target")
		for range 10 {
			b.f.DropMessages("target", verbstest.MessageREP, 1)
			q := b.host.dial(b.addr(), ioParam(8))
			q.request(ioParam(8))
			testutil.Until(t, "the target waits for the host", func() (ok bool) {
				b.on(func() {
					ok = b.g.queues.len() == 2
					for q := range b.g.queues.all() {
						q.cm.Lock()
						ok = ok && q.accepted // its reply is lost, so there is a time to expire
						q.cm.Unlock()
					}
				})
				return ok
			})
			q.free()
			b.f.ExpireCM()
			testutil.Until(t, "the connection has ended",
				func() bool { return b.tr.Usage().Connections == 1 })
		}
		testutil.Until(t, "everything of theirs is free",
			func() bool { return b.f.Live("target") == one })
		testutil.Equal(t, good.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "another host")
		testutil.Equal(t, b.h.Executed.Load(), 2,
			"commands were executed, want the two of the other host")
	})
}

// freeStuck frees the remains of a quarantined queue after the target was closed.
func (b *harness) freeStuck(q *queue) {
	b.t.Helper()
	b.f.FailCalls("target", verbstest.CallDestroyQP, 0, 0, nil)
	errs := []error{q.qp.Destroy(), q.slab.free()}
	if q.srq != nil {
		errs = append(errs, q.srq.Destroy())
		for _, sl := range q.srq.slabs {
			errs = append(errs, sl.free())
		}
	}
	p := q.p
	p.quarantined, p.dev.quarantined = false, false
	p.dev.refs, p.dev.stop = 1, func() {}
	if p.staging.pool != nil {
		p.staging.pool.Region().Keep(false)
		errs = append(errs, p.staging.mr.Dereg(), p.staging.pool.Region().Unmap())
		p.staging.pool = nil
	}
	errs = append(errs, p.free())
	b.arena.Region().Keep(false)
	b.h.Region.Keep(false)
	errs = append(errs, b.arena.Region().Unmap(), b.h.Region.Unmap())
	testutil.Check(b.t, errors.Join(errs...))
	testutil.Equal(b.t, b.f.Live("target"), (verbstest.Counts{}), "leaked")
}

// available returns the amount of free data memory.
func (b *harness) available() (n int) {
	b.on(func() { n = b.arena.Available() })
	return n
}

// A queue pair that cannot be destroyed may still use its memory: none of it is used again, not
// even after the target has stopped, which it does in order.
func TestDestroyFails(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		o.stuck = true
		b, hq := joined(t, o, ioParam(8))
		b.zeroCopyRead(hq, 0)
		testutil.MustTrue(t, b.registered(0), "there is no zero copy")
		var q *queue
		b.on(func() { q = b.g.first() })
		completed, ended := b.h.Completed.Load(), b.h.Ended.Load()
		for _, ops := range []verbstest.Ops{verbstest.OpRead, verbstest.OpWrite} {
			b.f.Inject(verbstest.Fault{Host: "target", Ops: ops, Hold: true, Times: -1})
		}
		free, memory := b.available(), b.tr.Usage().Memory
		for i, op := range []nvme.Opcode{opWrite, opRead, opZeroCopyRead} {
			s := hq.keyed(command(op, uint16(i), 0, 4096), 0, 4096)
			hq.send(&s, nil)
		}
		testutil.Until(t, "in flight", func() bool { return b.h.Completed.Load() == completed+2 })
		inFlight := b.available()
		testutil.MustTrue(t, inFlight != free, "the device has no data memory")
		b.f.FailCalls("target", verbstest.CallDestroyQP, 0, -1, unix.EBUSY)
		hq.disconnect()
		testutil.Until(t, "the queue ends", func() (ok bool) {
			b.on(func() { ok = b.g.queues.len() == 0 })
			return ok
		})
		testutil.Equal(t, b.available(), inFlight, "bytes of data memory are free")
		testutil.Equal(t, b.h.Ended.Load(), ended, "memory of the namespace was given back")
		if u := b.tr.Usage(); u.Quarantined != 1 || u.Memory != memory || u.Connections != 0 {
			t.Errorf("%+v, want one queue with its memory of %d bytes", u, memory)
		}
		if n := strings.Count(b.log.String(), "cannot be destroyed"); n != 1 {
			t.Errorf("said %d times:\n%s", n, b.log)
		}
		b.close()
		testutil.True(t, b.arena.Region().Bytes() != nil && b.h.Region.Bytes() != nil &&
			q.slab.region.Bytes() != nil, "memory that the device may use was unmapped")
		testutil.Equal(t, b.h.Ended.Load(), ended+1,
			"the target has stopped without the end of the zero copy")
		b.freeStuck(q)
	})
}

// The same for the queue pair of a connection that was refused.
func TestDestroyFailsAfterRefusal(t *testing.T) {
	b := newHarness(t, harnessOptions{stuck: true})
	b.on(func() { b.h.Refuse = errors.New("no room for hosts") })
	b.f.FailCalls("target", verbstest.CallDestroyQP, 0, -1, unix.EBUSY)
	b.host.rejected(b.addr(), ioParam(8))
	testutil.Until(t, "the connection ends", func() bool { return b.tr.Usage().Connections == 0 })
	u := b.tr.Usage()
	testutil.True(t, u.Quarantined == 1 && u.Memory != 0, "%+v, want one queue with its memory", u)
	var q *queue
	b.on(func() { q = b.h.Queue.(*queue) })
	b.close()
	b.freeStuck(q)
}

// mrs returns the MR cache of the device of the last queue.
func (b *harness) mrs() *mrCache {
	var t *mrCache
	b.on(func() { t = b.h.Queue.(*queue).p.dev.mrs })
	return t
}

// registered asks for a chunk of the store until it is registered, or nothing is being registered.
func (b *harness) registered(chunk int) (ok bool) {
	b.t.Helper()
	seg := []mem.Segment{{
		B:      b.h.Region.Bytes()[chunk*mem.ChunkSize:][:4096],
		Region: b.h.Region.ID(),
	}}
	table := b.mrs()
	b.on(func() { b.h.Queue.CanSendFrom(seg) }) // asks
	testutil.Until(b.t, "the memory is registered or is not", func() bool {
		table.mu.Lock()
		busy := table.working
		table.mu.Unlock()
		b.on(func() { ok = b.h.Queue.CanSendFrom(seg) })
		return ok || !busy
	})
	return ok
}

func (b *harness) zeroCopyRead(q *hostQueue, chunk int) {
	b.t.Helper()
	const n = 64 << 10
	copy(b.h.Region.Bytes()[chunk*mem.ChunkSize:], pattern(n, chunk))
	if st := q.do(q.keyed(command(opZeroCopyRead, 1, uint64(chunk*mem.ChunkSize), n), 0, n),
		nil); !st.OK() {
		b.t.Fatal(st)
	}
	testutil.True(b.t, bytes.Equal(q.buf[:n], pattern(n, chunk)), "other data came back")
}

// TestRegisteredByChunk: a chunk is registered when it is first asked for and stays so. Its pages
// cannot be given back, while others can. The region takes the registration with it.
func TestRegisteredByChunk(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(32))
		before := b.f.Live("target").MRs
		b.zeroCopyRead(q, 1)
		testutil.MustTrue(t, b.registered(1), "not registered:\n%s", b.log)
		for range 3 {
			b.zeroCopyRead(q, 1)
		}
		if n := b.f.Live("target").MRs; n != before+1 {
			t.Errorf("%d memory regions for one chunk", n-before)
		}
		testutil.Is(t, b.h.Region.Discard(mem.ChunkSize, mem.ChunkSize), mem.ErrPinned,
			"the pages of a registered chunk are given back")
		testutil.Check(t, b.h.Region.Discard(0, mem.ChunkSize))
		b.on(func() {
			across := mem.Segment{
				B:      b.h.Region.Bytes()[mem.ChunkSize-1 : mem.ChunkSize+1],
				Region: b.h.Region.ID(),
			}
			stranger := mem.Segment{B: make([]byte, 1), Region: 1 << 30}
			if q := b.h.Queue; q.CanSendFrom([]mem.Segment{across}) ||
				q.CanSendFrom([]mem.Segment{stranger}) || !q.CanSendFrom(nil) {
				t.Error("reaches what it cannot")
			}
		})
		testutil.Check(t, b.h.Region.Unmap())
		if n := b.f.Live("target").MRs; n != before {
			t.Errorf("%d memory regions outlive the memory", n-before)
		}
	})
}

// TestRegistrationLimit: memory that cannot be registered is copied, until it can be. That is
// logged once.
func TestRegistrationLimit(t *testing.T) {
	for name, limit := range map[string]func(b *harness){
		"limit": func(b *harness) { b.mrs().limit = 1 },
		"memlock": func(b *harness) {
			b.f.FailCalls("target", verbstest.CallRegMR, 1, -1, unix.ENOMEM)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, harnessOptions{})
			other := testutil.Value(mem.Map("test store", mem.ChunkSize))(t)
			q := b.host.connect(b.addr(), ioParam(32))
			limit(b)
			testutil.True(t, b.registered(0) && !b.registered(1), "the limit does not hold")
			seg := []mem.Segment{{B: other.Bytes(), Region: other.ID()}}
			b.on(func() { b.h.Queue.CanSendFrom(seg) })
			testutil.Until(b.t, "the other region is asked for", func() bool {
				table := b.mrs()
				table.mu.Lock()
				defer table.mu.Unlock()
				return !table.working
			})
			for range 3 {
				b.zeroCopyRead(q, 0)
				b.zeroCopyRead(q, 1)
			}
			n := strings.Count(b.log.String(), "see the memlock limit")
			testutil.True(t, n == 1, "said %d times:\n%s", n, b.log)
			b.f.FailCalls("target", verbstest.CallRegMR, 0, 0, nil)
			testutil.Check(t, other.Unmap())
		})
	}
}

// TestRegistrationLimitIsHalf: half of the limits of device and system is left to others.
// Memory that is not locked has no limit of the system.
func TestRegistrationLimitIsHalf(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(32))
	attr := b.mrs().d.attr
	attr.MaxMR, attr.Unlocked = 1000, false
	n := mrLimit(&attr)
	testutil.True(t, n <= 500, "%d of 1000 memory regions", n)
	attr.Unlocked = true
	testutil.Equal(t, mrLimit(&attr), 500, "memory regions that are not locked")
}

// TestRegisteredAfterRemoval: a device that was removed pins no memory.
func TestRegisteredAfterRemoval(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(32))
	b.zeroCopyRead(q, 0)
	testutil.MustTrue(t, b.registered(0), "not registered")
	testutil.MustTrue(t, b.f.RemoveDevice("target", "roce0"), "no such device")
	b.idle()
	testutil.Until(b.t, "the memory is free",
		func() bool { return b.h.Region.Discard(0, mem.ChunkSize) == nil })
}

// TestZeroCopyDisconnect: every zero copy is ended once, in any kind of disconnect.
func TestZeroCopyDisconnect(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		o.cfg.DrainTimeout = 50 * time.Millisecond // soft iWARP forgets late completions
		b := newHarness(t, o)
		for round := range 20 {
			q := b.host.connect(b.addr(), ioParam(32))
			if round == 0 {
				b.zeroCopyRead(q, 0)
				b.registered(0)
			}
			for i := range 16 {
				sqe := q.keyed(command(opZeroCopyRead, uint16(i), 0, 1<<20), i<<10, 1<<20)
				q.send(&sqe, nil)
			}
			if round%2 == 1 {
				b.on(func() { b.h.Queue.Disconnect(errors.New("test")) })
			}
			q.disconnect()
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q.free()
		}
	})
}
