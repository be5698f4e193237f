package verbstest_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

func TestInjectFail(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 8, recv: 1}, sizes{send: 8, recv: 4})
	i := f.Inject(verbstest.Fault{
		Host: "p", Ops: verbstest.OpWrite, Skip: 1,
		Fail: verbs.WCGeneralErr,
	})
	must(t, a.recv(9, 0, 8))
	must(t, p.post(8, p.wr(1, verbs.WRRDMAWrite, signaled, a), p.wr(2, verbs.WRSend, signaled, a)))
	must(t, a.post(8, a.wr(7, verbs.WRRDMAWrite, signaled, p))) // of the other machine
	testutil.MustEqual(t, i.Fired(), 0, "fired too early")
	a.buf[0], p.buf[0] = 0, 1
	must(t, p.post(8, p.wr(3, verbs.WRRDMAWrite, 0, a), p.wr(4, verbs.WRSend, 0, a)))
	p.want(ok(1), ok(2), verbs.WC{WRID: 3, Status: verbs.WCGeneralErr}, flush(4))
	a.want(ok(9), ok(7))
	if i.Fired() != 1 || a.buf[0] != 0 {
		t.Fatalf("fired %d times, data %d", i.Fired(), a.buf[0])
	}
}

func TestInjectDrop(t *testing.T) {
	f := newFabric(t, verbstest.Options{RetryTimeout: time.Millisecond})
	p, a := connect(t, f, sizes{send: 8, recv: 1}, sizes{send: 8, recv: 4})
	must(t, a.recv(9, 0, 8))
	f.Inject(verbstest.Fault{Drop: true})
	must(t, p.post(8, p.wr(1, verbs.WRSend, 0, a), p.wr(2, verbs.WRSend, 0, a)))
	p.want(verbs.WC{WRID: 1, Status: verbs.WCRetryExcErr}, flush(2))
	a.empty()
}

func TestInjectHold(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 8, recv: 1}, sizes{send: 8, recv: 4})
	must(t, a.recv(9, 0, 8))
	i := f.Inject(verbstest.Fault{Hold: true, Ops: verbstest.OpSend, Times: 2})
	must(t, p.post(8, p.wr(1, verbs.WRSend, signaled, a), p.wr(2, verbs.WRRDMAWrite, signaled, a)))
	p.empty()
	i.Release()
	p.want(ok(1), ok(2))
	a.want(ok(9))

	// A held work request is flushed: its release does nothing, even if its slot is in use again.
	i = f.Inject(verbstest.Fault{Hold: true})
	must(t, p.post(8, p.wr(3, verbs.WRSend, 0, a)))
	must(t, p.qp.ToError())
	p.want(flush(3))
	i.Release()
	p.empty()
}

func TestCut(t *testing.T) {
	f := newFabric(t, verbstest.Options{RetryTimeout: time.Hour})
	p, a := connect(t, f, sizes{send: 8, recv: 1}, sizes{send: 8, recv: 4})
	f.Cut("a", "p")
	must(t, p.post(8, p.wr(1, verbs.WRRDMAWrite, signaled, a)))
	p.empty()
	c := newCM(t, f, "a")
	x := newEnd(t, c, route(t, c, listen(t, newCM(t, f, "p"), listenAt(f, "p")).Local()),
		sizes{send: 1, recv: 1})
	must(t, x.id.Connect(verbs.ConnParam{}))
	f.ExpireCM()
	ev := next(t, c, verbs.EventUnreachable)
	testutil.MustTrue(t, ev.Status == -int(unix.ETIMEDOUT), "unreachable with status %d", ev.Status)
	f.Restore("p", "a")
	p.want(ok(1))

	f = newFabric(t, verbstest.Options{RetryTimeout: time.Millisecond})
	p, a = connect(t, f, sizes{send: 8, recv: 1}, sizes{send: 8, recv: 4})
	f.Cut("p", "a")
	must(t, a.recv(2, 0, 8))
	must(t, p.post(8, p.wr(1, verbs.WRRDMAWrite, signaled, a)))
	p.want(verbs.WC{WRID: 1, Status: verbs.WCRetryExcErr})
	a.empty() // it gets no event for that
}

func TestFailQP(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	_, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	must(t, a.recv(1, 0, 8))
	testutil.MustTrue(t, !f.FailQP("p", 1) && f.FailQP("a", a.qp.Num()),
		"FailQP found the wrong queue pair")
	a.want(flush(1))
}

func TestFailCQs(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	f.FailCQs("a")
	n, err := a.cq.Poll(make([]verbs.WC, 1))
	testutil.MustTrue(t, n == 0 && err != nil, "Poll: %d, %v", n, err)
	p.empty()
}

func TestRemoveDevice(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	must(t, p.recv(1, 0, 8))
	name := p.dev.Attr().Name
	addrs := f.Addrs("p")
	testutil.MustTrue(t, !f.RemoveDevice("p", "other") && f.RemoveDevice("p", name) &&
		!f.RemoveDevice("p", name), "RemoveDevice removed the wrong one")
	p.want(flush(1))
	seen := map[verbs.ID]bool{}
	for range 2 { // the connection and the listener at its address
		seen[next(t, p.cm, verbs.EventDeviceRemoval).ID] = true
	}
	testutil.MustTrue(t, seen[p.id], "no event for the connection")
	testutil.Is(t, testutil.Err(p.dev.AllocPD()), unix.EIO, "AllocPD on a removed device")
	testutil.Is(t, testutil.Err(p.cm.Listen(listenAt(f, "p"), 1, 0)), verbs.ErrNoDevice,
		"Listen on a removed device")
	list, err := f.Provider("p").Devices()
	testutil.MustTrue(t, len(list) == 0 && err == nil, "devices: %v, %v", list, err)
	f.AddHost("p", verbstest.RoCE("back", addrs...))
	l := listen(t, newCM(t, f, "p"), listenAt(f, "p"))
	testutil.MustEqual(t, l.Device().Attr().Name, "back", "listener on the wrong device")
	must(t, a.qp.ToError())
}

func TestFailCalls(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, _ := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	f.FailCalls("p", verbstest.CallRegMR, 1, 2, nil)
	for i, fails := range []bool{false, true, true, false} {
		m, err := p.pd.RegMR(p.buf, rights)
		testutil.MustTrue(t, fails == errors.Is(err, unix.ENOMEM) && (fails || err == nil),
			"call %d: %v", i, err)
		if err == nil {
			must(t, m.Dereg())
		}
	}
	f.FailCalls("p", verbstest.CallCreateCQ, 0, -1, unix.EPERM)
	for range 3 {
		testutil.Is(t, testutil.Err(p.dev.CreateCQ(1, nil, 0)), unix.EPERM, "")
	}
	f.FailCalls("p", verbstest.CallCreateCQ, 0, 0, nil)
	c := testutil.Value(p.dev.CreateCQ(1, nil, 0))(t)
	must(t, c.Destroy())
	f.FailCalls("q", verbstest.CallDevices, 0, 1, unix.EACCES)
	testutil.Is(t, testutil.Err(f.Provider("q").Devices()), unix.EACCES, "")
}
