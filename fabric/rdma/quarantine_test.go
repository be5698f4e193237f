package rdma

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
