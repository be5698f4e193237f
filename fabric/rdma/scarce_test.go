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
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
	for name, cfg := range map[string]Config{
		"queues":          {MaxQueues: 2},
		"queues per host": {MaxQueuesPerHost: 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, harnessOptions{cfg: cfg})
			b.h.Unproven.Store(cfg.MaxQueuesPerHost > 0)
			q := b.host.associate(b.addr(), ioParam(8))
			b.host.associate(b.addr(), ioParam(8))
			if cfg.MaxQueuesPerHost > 0 { // it might prove its NQN
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
