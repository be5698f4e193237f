package rdma

import (
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
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
	portID := <-lost
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
