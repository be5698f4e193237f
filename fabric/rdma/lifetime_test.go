package rdma

import (
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
