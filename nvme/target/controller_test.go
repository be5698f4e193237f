package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// faultyDevice is a RAM device that tests may hold or fail.
func faultyDevice(t testing.TB, size int64, blockSize int) *backendtest.Faulty {
	t.Helper()
	d := backendtest.NewFaulty(ramDeviceOpen(t, size, blockSize))
	closeLast(t, d)
	return d
}

// faultySubsystem has namespace 1 on a device that tests may hold or fail.
func faultySubsystem(t *testing.T) (SubsystemConfig, *backendtest.Faulty) {
	dev := faultyDevice(t, 1<<20, 512)
	return SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []namespaces.Config{{NSID: 1, Device: dev}},
	}, dev
}

// onFaulty connects a host to a target with faultySubsystem.
func onFaulty(t *testing.T, reactors, queues int) (*harness, *host, *backendtest.Faulty) {
	t.Helper()
	sub, dev := faultySubsystem(t)
	r, h := joined(t, reactors, queues, sub)
	return r, h, dev
}

// TestReset: a reset ends the I/O queues and waits for their I/O, then the controller can be
// enabled again (G04).
func TestReset(t *testing.T) {
	r, h, dev := onFaulty(t, 3, 3)
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	dev.Hold(nil)
	c := r.send(h.io[1], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })

	off := uint64(nvme.CCLinux &^ nvme.CCEnable)
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, off))
	r.until("the AER is aborted", func() bool { return aer.Done })
	testutil.Equal(t, aer.CQE.Status(), nvme.AbortRequested, "AER")
	r.w.Settle()
	for i, q := range h.io {
		testutil.True(t, q.Closed(), "I/O queue %d is still open", i+1)
	}
	testutil.True(t, h.csts().RDY(), "RDY is 0 while the device still has I/O of the controller")
	r.status(h.admin, identifyCommand(nvme.CNSController, 0), sequenceError)
	r.status(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)), sequenceError)
	dev.Release()
	r.until("RDY is 0", func() bool { return !h.csts().RDY() })
	testutil.True(t, !c.Done, "a command of an ended queue completed")

	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	h.io = nil
	r.ok(h.connectIO(1), rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
}

// TestShutdownOnce: a host that writes SHN again and again gets one shutdown and one timer, and the
// association ends two minutes after it.
func TestShutdownOnce(t *testing.T) {
	for name, sub := range map[string]string{"NVM": testSub, "discovery": nvme.DiscoveryNQN} {
		t.Run(name, func(t *testing.T) {
			r := newHarness(t, 1, ramSubsystem(t, 1))
			h := r.connectHost(0, func(a *connectArgs) { a.sub = sub })
			before := r.w.Reactors[0].Timers()
			for range 100 {
				for _, cc := range []nvme.CC{nvme.CCLinux | nvme.CCShutdownNormal, nvme.CCLinux} {
					r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
				}
				r.w.Advance(1e9)
			}
			n := r.w.Reactors[0].Timers()
			testutil.True(t, n <= before+1, "%d timers, %d before", n, before)
			st := h.csts()
			testutil.True(t, st.SHST() == 2, "CSTS %#x", st)
			r.w.Advance(21e9)
			testutil.True(t, h.admin.Closed() && len(r.target.Controllers()) == 0,
				"the association has not ended")
		})
	}
}

// TestResetAfterQueuesEnded: the end of the last earlier queue does not complete the reset of the
// queues that exist now.
func TestResetAfterQueuesEnded(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 1)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	h.io[0].HangUp() // the other reactor has not heard of it when the rest happens
	h.io = nil
	q := h.connectIO(1)
	dev.Hold(nil)
	r.send(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.w.Settle()
	testutil.True(t, h.csts().RDY(), "RDY is 0 while a queue's command is outstanding")
	dev.Release()
	r.until("RDY is 0", func() bool { return !h.csts().RDY() })
}

// TestResetAndShutdownTogether: a reset and a shutdown in one write of CC, or in two while the
// first is in progress, end in the state that both ask for.
func TestResetAndShutdownTogether(t *testing.T) {
	const shn = nvme.CCShutdownNormal
	for name, tc := range map[string]struct {
		writes []nvme.CC
		want   nvme.CSTS
	}{
		"shutdown": {
			[]nvme.CC{nvme.CCLinux | shn},
			nvme.CSTSReady | nvme.CSTSShutdownComplete,
		},
		"reset with shutdown": {
			[]nvme.CC{nvme.CCLinux&^nvme.CCEnable | shn},
			nvme.CSTSShutdownComplete,
		},
		"shutdown, then reset": {[]nvme.CC{nvme.CCLinux | shn, nvme.CCLinux &^ nvme.CCEnable}, 0},
		"reset, then shutdown": {
			[]nvme.CC{nvme.CCLinux &^ nvme.CCEnable, shn},
			nvme.CSTSShutdownComplete,
		},
		"shutdown twice": {[]nvme.CC{
			nvme.CCLinux | shn,
			nvme.CCLinux | nvme.CCShutdownAbrupt,
		}, nvme.CSTSReady | nvme.CSTSShutdownComplete},
		"shutdown, reset, start": {[]nvme.CC{nvme.CCLinux | shn, 0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, h, dev := onFaulty(t, 2, 1)
			dev.Hold(nil)
			r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.until("the device has the IO", func() bool { return dev.Held() == 1 })
			for _, cc := range tc.writes {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
			}
			r.w.Settle()
			if st := h.csts(); st == tc.want || st.SHST() == 2 {
				t.Errorf("CSTS %#x while the device still has I/O", st)
			}
			dev.Release()
			r.until("the queues have ended", func() bool { return h.csts() == tc.want })
			if tc.want&nvme.CSTSReady == 0 {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
				r.until("disabled", func() bool { return !h.csts().RDY() })
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
				st := h.csts()
				testutil.True(t, st == nvme.CSTSReady, "CSTS %#x after enabling again", st)
				r.w.Advance(300e9)
				r.ok(h.admin, identifyCommand(nvme.CNSController, 0))
			}
		})
	}
}

// TestAdminQueueEnds: every I/O queue ends with it, on every reactor (Q02).
func TestAdminQueueEnds(t *testing.T) {
	r := newHarness(t, 3, ramSubsystem(t, 1))
	h, other := r.connectHost(4), r.connectHost(2)
	r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	h.admin.HangUp()
	r.w.Settle()
	for i, q := range h.io {
		testutil.True(t, q.Closed(), "I/O queue %d is still open", i+1)
	}
	testutil.Equal(t, h.admin.Outstanding(), 0, "commands of the admin queue did not come back")
	testutil.Equal(t, len(r.target.Controllers()), 1, "controllers")
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
}

// TestDisconnectCommand: the queue ends when its other commands have completed (G06).
func TestDisconnectCommand(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 2)
	bad := &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsDisconnect)}
	bad.SQE[40] = 1
	r.status(h.io[0], bad, nvme.ConnectIncompatibleFormat|nvme.DNR)
	dev.Hold(nil)
	read := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	bye := r.send(h.io[0], &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsDisconnect)})
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	r.status(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), sequenceError)
	testutil.True(t, !bye.Done, "Disconnect completed before the read")
	dev.Release()
	r.until("Disconnect completes", func() bool { return bye.Done })
	r.w.Settle()
	if !read.Done || !bye.CQE.Status().OK() || !h.io[0].Closed() || h.io[1].Closed() ||
		h.admin.Closed() {
		t.Errorf("read done %v, Disconnect %v, closed %v %v %v", read.Done, bye.CQE.Status(),
			h.io[0].Closed(), h.io[1].Closed(), h.admin.Closed())
	}
	r.ok(r.dialInfo(1, h.info), h.ioArgs(1).command()) // the identifier is free again
}
