package verbstest_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

func wantErr(t *testing.T, err, want error, what string) {
	t.Helper()
	testutil.MustTrue(t, errors.Is(err, want), "%s: %v, want %v", what, err, want)
}

// TestSendSlots: a slot is given back when its completion or a later one is polled, not when the
// work is done.
func TestSendSlots(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 3, recv: 1, cq: 8})
	write := func(id uint64,
		flags verbs.SendFlags,
	) error {
		return a.post(8, a.wr(id, verbs.WRRDMAWrite, flags, p))
	}
	must(t, write(1, 0))
	must(t, write(2, signaled))
	must(t, write(3, 0))
	wantErr(t, write(4, 0), unix.ENOMEM, "fourth of three")
	a.want(ok(2))
	must(t, write(4, 0))
	must(t, write(5, 0))
	wantErr(t, write(6, 0), unix.ENOMEM, "slots of unsignaled work requests")
	a.empty()
	// Without a signaled work request the queue is lost; only errors complete now.
	must(t, a.qp.ToError())
	a.empty()
	wantErr(t, write(6, 0), unix.ENOMEM, "a full queue in the error state")

	n, err := p.qp.PostSend(make([]verbs.SendWR, 3), nil)
	testutil.MustTrue(t, n == 1 && errors.Is(err, unix.ENOMEM), "batch into a queue of one: %d, %v",
		n, err)
}

func TestReceiveSlots(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 2}, sizes{send: 2, recv: 1})
	must(t, p.recv(1, 0, 8))
	must(t, p.recv(2, 0, 8))
	wantErr(t, p.recv(3, 0, 8), unix.ENOMEM, "third of two")
	must(t, a.post(8, a.wr(1, verbs.WRSend, signaled, p)))
	wantErr(t, p.recv(3, 0, 8), unix.ENOMEM, "before the completion was polled")
	p.want(ok(1))
	must(t, p.recv(3, 0, 8))
}

func TestOverrun(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 4}, sizes{send: 4, recv: 1, cq: 2})
	for i := range uint64(3) {
		must(t, a.post(8, a.wr(i, verbs.WRRDMAWrite, signaled, p)))
	}
	n, err := a.cq.Poll(make([]verbs.WC, 4))
	testutil.MustTrue(t, n == 0 && err != nil, "Poll of an overrun queue: %d, %v", n, err)
	// The queue pair is dead: its peer can no longer reach it.
	must(t, p.recv(1, 0, 8))
	must(t, p.post(8, p.wr(2, verbs.WRSend, signaled, a)))
	p.want(verbs.WC{WRID: 2, Status: verbs.WCRetryExcErr}, flush(1))
}

// TestReadIsLate: work requests after a READ do not wait for its data.
func TestReadIsLate(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 8, recv: 4}, sizes{send: 8, recv: 4})
	hold := f.Inject(verbstest.Fault{Host: "p", Ops: verbstest.OpRead, Hold: true})
	must(t, a.recv(1, 64, 8))
	a.buf[0] = 1
	must(t, p.post(8, p.wr(2, verbs.WRRDMARead, 0, a), p.wr(3, verbs.WRSend, signaled, a)))
	// The peer takes the message as the end of the command and reuses its memory.
	a.want(ok(1))
	a.buf[0] = 2
	hold.Release()
	testutil.MustEqual(t, p.buf[0], 2, "the READ did not see what the peer wrote after the message")
	p.want(ok(3))
}

func TestIWARPReadSink(t *testing.T) {
	f := newFabric(t, verbstest.Options{IWARP: true})
	p, a := connect(t, f, sizes{send: 2, recv: 1}, sizes{send: 1, recv: 1})
	m := testutil.Value(p.pd.RegMR(p.buf, verbs.AccessLocalWrite))(t)
	defer func() { must(t, m.Dereg()) }()
	g := p.sge(0, 8)
	g.LKey = m.LKey()
	testutil.Value(
		p.qp.PostSend([]verbs.SendWR{p.wr(1, verbs.WRRDMARead, signaled, a)}, []verbs.SGE{g}))(t)
	p.want(verbs.WC{WRID: 1, Status: verbs.WCLocAccessErr})
	wr := p.wr(2, verbs.WRRDMARead, signaled, a)
	wr.NumSGE = 2
	testutil.Is(t, testutil.Err(p.qp.PostSend([]verbs.SendWR{wr}, []verbs.SGE{g, g})), unix.EINVAL,
		"READ into two elements")
}

// TestForgotten: the effect of posting after an error.
func TestForgotten(t *testing.T) {
	for _, c := range []struct {
		opt  verbstest.Options
		send bool // completes
	}{
		{verbstest.Options{}, true},
		{verbstest.Options{IWARP: true}, false},
	} {
		f := newFabric(t, c.opt)
		p, a := connect(t, f, sizes{send: 2, recv: 2}, sizes{send: 2, recv: 2})
		must(t, a.recv(1, 0, 8))
		must(t, a.qp.ToError())
		a.want(flush(1))
		must(t, a.recv(2, 0, 8))
		must(t, a.post(8, a.wr(3, verbs.WRSend, 0, p)))
		if c.send {
			a.want(flush(3))
		}
		a.empty()
	}
}

func TestKeys(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 2, recv: 1}, sizes{send: 2, recv: 1})
	testutil.MustTrue(t, a.mr.LKey() != a.mr.RKey(),
		"local and remote key are the same: a mix-up would not show")
	m := testutil.Value(a.pd.RegMR(a.buf[:64], rights))(t)
	stale := m.RKey()
	must(t, m.Dereg())
	m = testutil.Value(a.pd.RegMR(a.buf[:64], rights))(t)
	defer func() { must(t, m.Dereg()) }()
	testutil.MustTrue(t, m.RKey() != stale, "a key was used again")
	wr := p.wr(1, verbs.WRRDMAWrite, signaled, a)
	wr.RKey = stale
	must(t, p.post(8, wr))
	p.want(verbs.WC{WRID: 1, Status: verbs.WCRemAccessErr})
	for _, access := range []verbs.Access{verbs.AccessRemoteWrite, 1 << 3} {
		if _, err := a.pd.RegMR(a.buf, access); !errors.Is(err, unix.EINVAL) {
			t.Errorf("RegMR with access %#x: %v, want EINVAL", access, err)
		}
	}
	if got, want := f.Live("a"),
		(verbstest.Counts{
			CMs: 1, IDs: 1, PDs: 1, MRs: 2, CQs: 1, QPs: 1, MRBytes: 1<<16 + 64,
			RemoteMRs: 2,
		}); got != want {
		t.Errorf("live %+v, want %+v", got, want)
	}
}

func TestMisuse(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	wantErr(t, a.pd.Dealloc(), unix.EBUSY, "free a protection domain in use")
	wantErr(t, a.cq.Destroy(), unix.EBUSY, "destroy a completion queue in use")
	wantErr(t, a.id.Destroy(), unix.EBUSY, "destroy an ID with a queue pair")
	wantErr(t, a.cm.Close(), unix.EBUSY, "close an event channel with IDs")
	testutil.Is(t, testutil.Err(a.id.CreateQP(a.pd, verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq})),
		unix.EINVAL, "second queue pair")
	testutil.Is(t, testutil.Err(p.dev.CreateCQ(0, nil, 0)), unix.EINVAL,
		"completion queue of nothing")
	wantErr(t, a.post(8, verbs.SendWR{Opcode: 5}), unix.EINVAL, "an atomic operation")
	wantErr(t, a.post(33, verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, NumSGE: 1}),
		unix.EINVAL, "too much inline data")

	m := testutil.Value(a.pd.RegMR(a.buf, rights))(t)
	must(t, m.Dereg())
	defer func() {
		testutil.True(t, recover() != nil, "a region was freed twice without a panic")
	}()
	_ = m.Dereg()
}

func TestReceiverNotReady(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	for retries, want := range map[uint8]verbs.WCStatus{
		0: verbs.WCRNRRetryExcErr, 2: verbs.WCRNRRetryExcErr,
		7: verbs.WCSuccess,
	} {
		p, a := connect(t, f, sizes{send: 1, recv: 4}, sizes{
			send: 4, recv: 1,
			param: verbs.ConnParam{RNRRetryCount: retries, InitiatorDepth: 1},
		})
		// The passive side uses the retry count of the request, too.
		must(t, p.post(8, p.wr(1, verbs.WRSend, signaled, a)))
		if want == verbs.WCSuccess {
			p.empty()
			must(t, a.recv(2, 0, 8))
			a.want(ok(2))
		}
		p.want(verbs.WC{WRID: 1, Status: want})
	}
}

func TestReceiverNotReadyOnIWARP(t *testing.T) {
	f := newFabric(t, verbstest.Options{IWARP: true})
	p, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	must(t, a.recv(2, 0, 8))
	must(t, a.post(8, a.wr(1, verbs.WRSend, signaled, p)))
	a.want(ok(1), flush(2))
	next(t, a.cm, verbs.EventDisconnected)
	next(t, p.cm, verbs.EventDisconnected)
}

func TestReadDepth(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f,
		sizes{send: 8, recv: 1, param: verbs.ConnParam{InitiatorDepth: 2, ResponderResources: 1}},
		sizes{send: 8, recv: 1, param: verbs.ConnParam{InitiatorDepth: 4, ResponderResources: 1}})
	// a may issue as many as p serves: one at a time.
	hold := f.Inject(verbstest.Fault{Host: "a", Ops: verbstest.OpRead, Hold: true, Times: -1})
	for i := range uint64(3) {
		must(t, a.post(8, a.wr(i, verbs.WRRDMARead, signaled, p)))
	}
	testutil.MustEqual(t, hold.Fired(), 1+1, "READs that were looked at: the next one waits")
	// After waiting READs it waits as well.
	must(t, a.post(8, a.wr(3, verbs.WRRDMAWrite, signaled, p)))
	p.buf[0] = 0
	a.buf[0] = 7
	a.empty()
	hold.Release()
	a.want(ok(0), ok(1), ok(2), ok(3))
	// p issues two at once, although a offered one: the passive side decides.
	hold = f.Inject(verbstest.Fault{Host: "p", Ops: verbstest.OpRead, Hold: true, Times: -1})
	for i := range uint64(4) {
		must(t, p.post(8, p.wr(i, verbs.WRRDMARead, signaled, a)))
	}
	testutil.MustEqual(t, hold.Fired(), 2+1, "READs that were looked at: the third one waits")
	hold.Release()
	p.want(ok(0), ok(1), ok(2), ok(3))

	p, a = connect(t, f, sizes{send: 1, recv: 1, param: verbs.ConnParam{RNRRetryCount: 7}},
		sizes{send: 1, recv: 1})
	must(t, p.post(8, p.wr(1, verbs.WRRDMARead, signaled, a)))
	p.want(verbs.WC{WRID: 1, Status: verbs.WCLocQPOpErr})
}
