package rdma

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// qpNum is the queue pair number of the target's only queue.
func (b *harness) qpNum() (n uint32) {
	b.on(func() {
		for q := range b.g.queues.all() {
			n = q.qp.Num()
		}
	})
	return n
}

func TestAsyncEventsOfQueuePairs(t *testing.T) {
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncQPFatal, verbs.AsyncQPReqErr,
		verbs.AsyncQPAccessErr,
	} {
		b, q := joined(t, harnessOptions{}, ioParam(8))
		num := b.qpNum()
		b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncCommEst, QPNum: num})
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num + 1})
		testutil.MustEqual(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num})
		b.idle()
		testutil.True(t, strings.Contains(b.log.String(), "the device reports "+ev.String()),
			"log without the reason:\n%s", b.log)
	}
}

// An idle queue never polls; only the event shows that its completion queue has failed.
func TestAsyncEventOfCompletionQueue(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.f.FailCQs("target")
	b.idle()
	testutil.True(t, strings.Contains(b.log.String(), "completion queue: "),
		"log without the reason:\n%s", b.log)
}

// A failed device ends its queues at once and is given up; the next connection starts afresh.
func TestAsyncDeviceFatal(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.host.connect(b.addr(), ioParam(8))
	b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncDeviceFatal})
	b.idle()
	testutil.Until(t, "retired", func() bool { return b.f.Live("target").PDs == 0 })
	testutil.True(t, strings.Contains(b.log.String(), errDeviceFatal.Error()),
		"log without the reason:\n%s", b.log)
	b.host.event(verbs.EventDisconnected)
	b.host.event(verbs.EventDisconnected)
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}

// Ports and addresses come and go without effect on queues.
func TestAsyncEventsOfPorts(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(8))
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncPortErr, verbs.AsyncPortActive,
		verbs.AsyncGIDChange, verbs.AsyncType(77),
	} {
		b.f.Raise("target", verbs.AsyncEvent{Type: ev})
	}
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	testutil.Until(t, "log", func() bool {
		return strings.Count(b.log.String(), "PORT_ERR") == 1 &&
			strings.Contains(b.log.String(), "RDMA port is active")
	})
}

func TestAsyncCannotBeWatched(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.f.FailCalls("target", verbstest.CallWatch, 0, 1, nil)
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(8)), cmwire.NoResources, "")
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}
