package rdma

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
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
		b := newHarness(t, harnessOptions{})
		q := b.host.connect(b.addr(), ioParam(8))
		num := b.qpNum()
		b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncCommEst, QPNum: num})
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num + 1})
		if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
			t.Fatal(st)
		}
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num})
		b.idle()
		if !strings.Contains(b.log.String(), "the device reports "+ev.String()) {
			t.Errorf("log without the reason:\n%s", b.log)
		}
	}
}

// An idle queue never polls; only the event shows that its completion queue has failed.
func TestAsyncEventOfCompletionQueue(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.f.FailCQs("target")
	b.idle()
	if !strings.Contains(b.log.String(), "completion queue: ") {
		t.Errorf("log without the reason:\n%s", b.log)
	}
}

// A failed device ends its queues at once and is given up; the next connection starts afresh.
func TestAsyncDeviceFatal(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.host.connect(b.addr(), ioParam(8))
	b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncDeviceFatal})
	b.idle()
	testutil.Until(t, "retired", func() bool { return b.f.Live("target").PDs == 0 })
	if !strings.Contains(b.log.String(), errDeviceFatal.Error()) {
		t.Errorf("log without the reason:\n%s", b.log)
	}
	b.host.event(verbs.EventDisconnected)
	b.host.event(verbs.EventDisconnected)
	q := b.host.connect(b.addr(), ioParam(8))
	if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
		t.Error(st)
	}
}

// Ports and addresses come and go without effect on queues.
func TestAsyncEventsOfPorts(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	q := b.host.connect(b.addr(), ioParam(8))
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncPortErr, verbs.AsyncPortActive,
		verbs.AsyncGIDChange, verbs.AsyncType(77),
	} {
		b.f.Raise("target", verbs.AsyncEvent{Type: ev})
	}
	if st := q.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
		t.Error(st)
	}
	testutil.Until(t, "log", func() bool {
		return strings.Count(b.log.String(), "PORT_ERR") == 1 &&
			strings.Contains(b.log.String(), "RDMA port is active")
	})
}

func TestAsyncCannotBeWatched(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.f.FailCalls("target", verbstest.CallWatch, 0, 1, nil)
	if st := b.host.rejected(b.addr(), ioParam(8)); st != cmwire.NoResources {
		t.Error(st)
	}
	q := b.host.connect(b.addr(), ioParam(8))
	if st := q.do(command(opNothing, 1, 0, 0), nil); st != nvme.Success {
		t.Error(st)
	}
}
