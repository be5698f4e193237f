package rdma

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A host may send as soon as it is connected, before its last message of the connection has come, or if that is lost.
func TestCapsuleBeforeEstablished(t *testing.T) {
	timers := &earlyLoop{}
	b := newBench(t, benchOptions{timers: timers})
	b.f.DropMessages("host", verbstest.MessageRTU, -1)
	q := b.host.connect(b.addr(), ioParam(8))
	if st := q.do(command(opConnect, 1, 8, 0), nil); !st.OK() {
		t.Fatal(st)
	}
	b.expire(timers) // but not the deadline, which a Connect command lifts
	if st := q.do(command(opNothing, 2, 0, 0), nil); !st.OK() {
		t.Error(st)
	}
}

func TestDeadlines(t *testing.T) {
	for name, drop := range map[string]bool{"not established": true, "no Connect command": false} {
		t.Run(name, func(t *testing.T) {
			timers := &earlyLoop{}
			b := newBench(t, benchOptions{timers: timers})
			if drop {
				b.f.DropMessages("target", verbstest.MessageREP, 1)
			}
			q := b.host.dial(b.addr(), adminParam())
			q.request(adminParam())
			state, want := queueLive, errNoConnect
			if drop {
				state, want = queueOpening, errNoEstab
			}
			b.eventually("open", func() (ok bool) {
				b.on(func() { ok = b.g.queues == 1 && b.g.slots[0].state == state })
				return ok
			})
			b.expire(timers)
			b.idle()
			if !strings.Contains(b.log(), want.Error()) {
				t.Errorf("log without %q:\n%s", want, b.log())
			}
		})
	}
}

// Whatever state its commands are in, the end of a queue frees everything, once.
func TestDisconnectInEveryState(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		o.arena = 1 << 20
		o.cfg = Config{StagingSize: 1 << 20, DrainTimeout: 5 * time.Second}
		b := newBench(t, o)
		reads := b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpRead, Hold: true, Times: -1})
		sends := b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpSend, Skip: 1, Hold: true, Times: -1})
		q := b.host.connect(b.addr(), ioParam(32))
		if st := q.do(command(opNothing, 0, 0, 0), nil); !st.OK() {
			t.Fatal(st)
		}
		for i, s := range []nvme.SQE{
			command(opHold, 1, 0, 0),
			q.keyed(command(opWrite, 2, 0, 512<<10), 0, 512<<10),
			q.keyed(command(opWrite, 3, 0, 512<<10), 0, 512<<10),
			q.keyed(command(opWrite, 4, 0, 512<<10), 0, 512<<10), // waits for memory
			q.keyed(command(opLentWrite, 5, 0, 512<<10), 0, 512<<10),
			command(opNothing, 6, 0, 0), // its response is held
			command(opNothing, 7, 0, 0),
		} {
			q.send(&s, nil)
			b.eventually("prepared", func() bool { return b.h.count("prepare") == i+2 })
		}
		b.eventually("held", func() bool { return b.h.count("held") == 1 })
		q.disconnect()
		b.eventually("closed", func() bool { return b.h.count("closed") == 1 })
		reads.Release()
		sends.Release()
		b.eventually("the queue pair is gone", func() bool { return b.f.Live("target").QPs == 0 })
		b.on(func() {
			if b.g.queues != 1 || b.g.slots[0].state != queueGone {
				t.Errorf("%d queues, the first in state %d: the handler still has a request", b.g.queues, b.g.slots[0].state)
			}
		})
		b.letGo()
		b.idle()
		if n := b.h.count("abandon"); n != 4 {
			t.Errorf("%d requests were abandoned, want 4", n)
		}
	})
}

func TestTargetDisconnects(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
		q := b.host.connect(b.addr(), adminParam())
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

// I/O that is under way when the target shuts down is answered.
func TestShutdownAnswers(t *testing.T) {
	b := newBench(t, benchOptions{cfg: Config{LingerTimeout: 5 * time.Second}})
	q := b.host.connect(b.addr(), ioParam(8))
	s := q.keyed(command(opHoldWrite, 1, 0, 512), 0, 512)
	q.send(&s, nil)
	b.eventually("held", func() bool { return b.h.count("held") == 1 })
	done := make(chan struct{})
	b.on(func() { b.g.Shutdown(func() { close(done) }) })
	b.letGo()
	if cqe, _, ok := q.response(); !ok || !cqe.Status().OK() {
		t.Errorf("response %v %v", cqe.Status(), ok)
	}
	<-done
	b.host.event(verbs.EventDisconnected)
	if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
		t.Errorf("a connection during shutdown: %v", st)
	}
}

// What a host does wrong ends its queue and no other.
func TestOffenders(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
		good := b.host.connect(b.addr(), ioParam(8))
		tests := map[string]func(q *hostQueue){
			"short capsule": func(q *hostQueue) { q.sendBytes(make([]byte, 63), nil) },
			"empty capsule": func(q *hostQueue) { q.sendBytes(nil, nil) },
			"long capsule":  func(q *hostQueue) { q.sendBytes(make([]byte, 64), make([]byte, 4097)) },
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
			executed := b.h.count("execute")
			offend(q)
			b.host.event(verbs.EventDisconnected)
			if b.h.count("execute") != executed && name != "address of a read" {
				t.Errorf("%s: the handler got something", name)
			}
			q.free()
			if st := good.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
				t.Errorf("after %s: %v", name, st)
			}
		}
	})
}

func TestQueuePairFails(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
		hold := b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpRead, Hold: true})
		q := b.host.connect(b.addr(), ioParam(8))
		s := q.keyed(command(opWrite, 1, 0, 4096), 0, 4096)
		q.send(&s, nil)
		b.eventually("reading", func() bool { return hold.Fired() == 1 })
		var num uint32
		b.on(func() { num = b.g.slots[0].qp.Num() })
		if !b.f.KillQP("target", num) {
			t.Fatal("no such queue pair")
		}
		b.idle()
		if b.h.count("abandon") != 1 || b.h.count("execute") != 0 {
			t.Error("a write whose data did not come was not abandoned")
		}
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
			b := newBench(t, benchOptions{})
			f.Host = "target"
			b.f.Inject(f)
			q := b.host.connect(b.addr(), ioParam(8))
			for i, op := range []nvme.Opcode{opWrite, opRead} {
				s := q.keyed(command(op, uint16(i), 0, 4096), 0, 4096)
				q.send(&s, nil)
			}
			b.idle()
			if !strings.Contains(b.log(), "failed: ") {
				t.Errorf("no reason in the log:\n%s", b.log())
			}
		})
	}
}

// A completion queue that fails takes its queues with it; the next connection gets another one.
func TestCompletionQueueFails(t *testing.T) {
	b := newBench(t, benchOptions{})
	q := b.host.connect(b.addr(), ioParam(8))
	b.host.connect(b.addr(), ioParam(8))
	s := command(opHold, 1, 0, 0)
	q.send(&s, nil)
	b.eventually("held", func() bool { return b.h.count("held") == 1 })
	b.f.KillCQs("target")
	b.on(func() {}) // awake
	b.letGo()
	b.idle()
	b.host.event(verbs.EventDisconnected)
	b.host.event(verbs.EventDisconnected)
	q = b.host.connect(b.addr(), ioParam(8))
	if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
		t.Error(st)
	}
}

// The host posts no receives: only its queue suffers, and not for ever.
func TestHostWithoutReceives(t *testing.T) {
	for name, retry := range map[string]uint8{"few retries": 1, "for ever": 7} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchOptions{cfg: Config{SendTimeout: 50 * time.Millisecond}})
			good := b.host.connect(b.addr(), ioParam(8))
			p := ioParam(8)
			p.recvs, p.rnrRetry = -1, retry
			q := b.host.connect(b.addr(), p)
			s := command(opNothing, 1, 0, 0)
			q.send(&s, nil)
			b.host.event(verbs.EventDisconnected)
			if st := good.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
				t.Error(st)
			}
		})
	}
}

// A host that vanishes without a word: the first response that is not acknowledged ends the queue.
func TestHostVanishes(t *testing.T) {
	b := newBench(t, benchOptions{fabric: verbstest.Options{CMTimeout: time.Hour}})
	q := b.host.connect(b.addr(), ioParam(8))
	s := command(opHold, 1, 0, 0)
	q.send(&s, nil)
	b.eventually("held", func() bool { return b.h.count("held") == 1 })
	b.f.Cut("host", "target")
	b.letGo()
	b.eventually("gone", func() bool { b.f.ExpireCM(); return b.h.count("closed") == 1 })
	b.idle()
}

// Whatever the device refuses, the connection is rejected with "no resources", nothing is left over, and the next one works.
func TestNoResources(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		o.cfg = Config{ConnectTimeout: 20 * time.Second}
		for _, call := range []verbstest.Call{
			verbstest.CallAllocPD, verbstest.CallCreateCompChannel, verbstest.CallRegMR, verbstest.CallCreateCQ,
			verbstest.CallCreateQP, verbstest.CallAccept,
		} {
			for skip := 0; skip < 3; skip++ {
				if skip > 0 && call != verbstest.CallRegMR {
					continue
				}
				b := newBench(t, o)
				b.f.FailCalls("target", call, skip, 1, nil)
				if skip == 2 && !o.fabric.IWARP { // there are two registrations
					b.f.FailCalls("target", call, 0, 0, nil)
				} else if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
					t.Errorf("%s fails: %v", call, st)
				}
				b.idle()
				q := b.host.connect(b.addr(), ioParam(8))
				if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
					t.Errorf("after %s failed: %v", call, st)
				}
				b.close()
			}
		}
	})
}

func TestHandlerRefuses(t *testing.T) {
	b := newBench(t, benchOptions{})
	b.h.mu.Lock()
	b.h.openErr = errors.New("no room for hosts")
	b.h.mu.Unlock()
	if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
		t.Error(st)
	}
	b.eventually("the reason is reported", func() bool { return strings.Contains(b.log(), "no room for hosts") })
	b.idle()
}

func TestLimits(t *testing.T) {
	for name, cfg := range map[string]Config{"queues": {MaxQueues: 2}, "queues per host": {MaxQueuesPerHost: 2}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchOptions{cfg: cfg})
			q := b.host.connect(b.addr(), ioParam(8))
			b.host.connect(b.addr(), ioParam(8))
			if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
				t.Error(st)
			}
			q.disconnect()
			b.host.event(verbs.EventDisconnected)
			b.eventually("one connection", func() bool { return b.tr.Connections() == 1 })
			b.host.connect(b.addr(), ioParam(8))
		})
	}
}

// More queues than one completion queue has room for get another one; a device without room for more refuses.
func TestCompletionQueuesFillUp(t *testing.T) {
	o := benchOptions{setup: func(f *verbstest.Fabric) {
		d := verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1"))
		d.Attr.MaxCQE, d.Attr.MaxCQ = 64, 2
		f.AddHost("target", d)
	}}
	b := newBench(t, o)
	p := ioParam(8) // 8 receives, 24 sends
	var qs []*hostQueue
	for range 4 {
		qs = append(qs, b.host.connect(b.addr(), p))
	}
	if n := b.f.Live("target").CQs; n != 2 {
		t.Errorf("%d completion queues for 4 queues", n)
	}
	if st := b.host.rejected(b.addr(), p); st != cmwire.NoResources {
		t.Error(st)
	}
	qs[0].disconnect()
	b.host.event(verbs.EventDisconnected)
	b.eventually("room", func() bool { return b.tr.Connections() == 3 })
	qs = append(qs[1:], b.host.connect(b.addr(), p))
	for _, q := range qs {
		if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
			t.Error(st)
		}
	}
	if st := b.host.rejected(b.addr(), ioParam(100)); st != cmwire.NoResources {
		t.Errorf("a queue larger than any completion queue: %v", st)
	}
}

// A device that goes away takes its queues along; the listener returns with it.
func TestDeviceRemoval(t *testing.T) {
	b := newBench(t, benchOptions{})
	q := b.host.connect(b.addr(), ioParam(8))
	s := command(opHold, 1, 0, 0)
	q.send(&s, nil)
	b.eventually("held", func() bool { return b.h.count("held") == 1 })
	addrs := b.f.Addrs("target")
	if !b.f.RemoveDevice("target", "roce0") {
		t.Fatal("no device")
	}
	b.eventually("closed", func() bool { return b.h.count("closed") == 1 })
	b.letGo()
	b.idle()
	b.eventually("everything is free", func() bool {
		live := b.f.Live("target")
		live.CMs = 0
		return live == verbstest.Counts{}
	})
	b.f.AddHost("target", verbstest.RoCE("roce0", addrs...))
	b.eventually("the listener is back", func() bool { return strings.Contains(b.log(), "RDMA listener is back") })
	q.free()
	b.host.event(verbs.EventDisconnected)
	q = b.host.connect(b.addr(), ioParam(8))
	if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
		t.Error(st)
	}
}

func TestListenerClosedWhileDeviceIsAway(t *testing.T) {
	b := newBench(t, benchOptions{})
	b.f.RemoveDevice("target", "roce0")
	b.eventually("noticed", func() bool { return strings.Contains(b.log(), "lost its device") })
	if err := b.l.Close(); err != nil {
		t.Error(err)
	}
}

// With less memory than commands ask for they take turns.
func TestMemoryIsShort(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		o.arena, o.cfg.StagingSize = 1<<20, 1<<20
		b := newBench(t, o)
		q := b.host.connect(b.addr(), ioParam(32))
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
		if st := q.do(q.keyed(command(opRead, 1, 0, n), 2<<20, n), nil); !st.OK() || !bytes.Equal(q.buf[2<<20:2<<20+n], want) {
			t.Errorf("read back: %v", st)
		}
	})
}

func TestMemoryNeverComes(t *testing.T) {
	b := newBench(t, benchOptions{arena: 1 << 20, cfg: Config{MemoryTimeout: 30 * time.Millisecond}})
	q := b.host.connect(b.addr(), ioParam(32))
	s := q.keyed(command(opHoldWrite, 1, 0, 1<<20), 0, 1<<20)
	q.send(&s, nil)
	b.eventually("held", func() bool { return b.h.count("held") == 1 })
	if st := q.do(q.keyed(command(opRead, 2, 0, 4096), 0, 4096), nil); st != nvme.CommandInterrupted {
		t.Error(st)
	}
	b.letGo()
	if cqe, _, ok := q.response(); !ok || !cqe.Status().OK() {
		t.Error(cqe.Status(), ok)
	}
}

// The narrowest device: few work requests, one element each, one READ at once, and no inline data.
func TestNarrowDevice(t *testing.T) {
	o := benchOptions{setup: func(f *verbstest.Fabric) {
		d := verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1"))
		d.Attr.MaxQPWR, d.Attr.MaxSGE, d.Attr.MaxSGERD, d.Attr.MaxQPInitRdAtom = 8, 2, 1, 1
		d.MaxInline = -1
		f.AddHost("target", d)
	}}
	b := newBench(t, o)
	p := ioParam(8)
	p.hrqsize = 2
	q := b.host.connect(b.addr(), p)
	// Single pages are lent out, so that a transfer of 2 MiB is in hundreds of pieces.
	b.on(func() { b.fragment() })
	want := pattern(1<<20, 5)
	copy(q.buf, want)
	for round := range 4 {
		for i := range 8 {
			s := q.keyed(command(opWrite, uint16(i), uint64(i)*128<<10, 128<<10), i*128<<10, 128<<10)
			if round%2 == 1 {
				s = q.keyed(command(opRead, uint16(i), uint64(i)*128<<10, 128<<10), 2<<20+i*128<<10, 128<<10)
			}
			q.send(&s, nil)
		}
		for range 8 {
			if cqe, _, ok := q.response(); !ok || !cqe.Status().OK() {
				t.Fatalf("%v %+v", cqe.Status(), q.bad)
			}
		}
	}
	if !bytes.Equal(q.buf[2<<20:3<<20], want) {
		t.Error("other data came back")
	}
	b.on(b.defragment)
}

func TestManyConnections(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
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
		if live.QPs != 0 || live.IDs != 1 || live.CQs != 1 {
			t.Errorf("after 50 connections: %+v", live)
		}
	})
}
