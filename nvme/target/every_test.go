package target

import (
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// everyNamespaces is the number of namespaces for commands that are for all of them.
const everyNamespaces = 1500

// everySubsystem has namespaces that share a device.
func everySubsystem(t *testing.T) (subsystems.Config, *counter) {
	dev := &counter{Device: ramDevice(t, 1<<20, 512)}
	return subsystemOf(testSub, slices.Repeat([]backend.Device{dev}, everyNamespaces)...), dev
}

// TestFlushSteps: a Flush of all namespaces looks at some of them in a turn, and flushes fewer, and
// other commands are served meanwhile.
func TestFlushSteps(t *testing.T) {
	for _, flushes := range []int{everyNamespaces, 2} {
		sub, dev := everySubsystem(t)
		for i := flushes; i < len(sub.Namespaces); i++ {
			sub.Namespaces[i].Hosts = []string{otherHost}
		}
		r := newHarness(t, 1, sub)
		q := r.connectHost(2).io
		r.ok(q[0], command(nvme.NVMFlush, nvme.NSIDAll, nil)) // opens the channels
		dev.take()
		flush := r.send(q[0], command(nvme.NVMFlush, nvme.NSIDAll, nil))
		ios, steps := 0, 0
		for ; !flush.Done; steps++ {
			read := r.send(q[1], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.w.Step()
			n, _ := dev.take()
			testutil.MustTrue(t, n <= 2*compoundWidth+1, "%d in a turn", n)
			testutil.MustTrue(t, flush.Done || read.Done, "a read waits for the flush")
			ios += n
		}
		testutil.Equal(t, flush.CQE.Status(), nvme.Success, "flush")
		testutil.True(t, steps > 2*everyNamespaces/flushLook-1, "only %d turns", steps)
		testutil.True(t, ios == flushes+steps, "%d IOs with %d reads", ios, steps)
	}
}

// TestFlushPreempted: a Flush of all namespaces is aborted by Preempt and Abort in a namespace that
// it has not come to, also if its host keeps access, and not in one that it has flushed. It is
// aborted as well if its host has lost access to a namespace since it was checked.
func TestFlushPreempted(t *testing.T) {
	const last = uint32(2 * compoundWidth)
	for _, kind := range []string{"to come", "done", "postponed", "no access"} {
		dev := faultyDevice(t, 1<<20, 512)
		list := slices.Repeat([]backend.Device{dev}, int(last))
		at := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
		nsid, reactors := last, 2
		switch kind {
		case "done":
			nsid = 1
		case "postponed":
			reactors = 1 // of all its commands
		}
		list[nsid-1] = at
		r := newHarness(t, reactors, subsystemOf(testSub, list...))
		a, b := r.numbered(0, 1), r.numbered(1, 5)
		r.ok(a.io[0], withNSID(register(1), nsid))
		r.ok(b.io[0], withNSID(register(2), nsid))
		r.ok(b.io[0], rw(nvme.NVMRead, nsid, 0, 1, make([]byte, 512)))
		at.take()
		dev.Hold(nil)
		if kind == "postponed" {
			for i := range 2 * mostCompounds / 3 {
				r.send(b.io[i/100], rw(nvme.NVMVerify, 1, 0, 1, nil))
			}
		}
		flush := r.send(b.io[4], command(nvme.NVMFlush, nvme.NSIDAll, nil))
		r.w.Settle()
		c := withNSID(preempt(nvme.ReservationPreemptAndAbort, 1, 2, nvme.WriteExclusive), nsid)
		if kind == "no access" {
			c = withNSID(acquire(1, nvme.WriteExclusive), nsid)
		}
		r.ok(a.io[0], c)
		if kind == "postponed" {
			testutil.MustTrue(t, flush.Done, "the flush is still postponed")
		}
		dev.Release()
		want, ios := nvme.AbortedPreempt, 0
		if kind == "done" {
			want, ios = nvme.Success, 1
		}
		r.allDone([]*fabrictest.Command{flush}, want)
		testutil.Equal(t, len(at.take()), ios, "%s: flushes of the namespace", kind)
	}
}

// TestPreemptSparesAdmin: Preempt and Abort leaves the IOs of admin queues alone. They are the
// target's own.
func TestPreemptSparesAdmin(t *testing.T) {
	sub, dev := faultySubsystem(t)
	dev.HonorCancel()
	r := protectHarness(t, newProtectionStore(), sub)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	r.ok(b.io[0], acquire(2, nvme.WriteExclusive))
	dev.Hold(opIs(backend.OpFlush))
	protect := r.send(b.admin, protectCommand(1, nvme.WriteProtect))
	r.until("the device has the flush", func() bool { return dev.Held() == 1 })
	c := r.send(a.io[0], preempt(nvme.ReservationPreemptAndAbort, 1, 2, nvme.WriteExclusive))
	a.untilChanged(hasOneRegistrant)
	r.w.Settle()
	testutil.True(t, !protect.Done, "the flush is aborted: %v", protect.CQE.Status())
	dev.Release()
	r.allDone([]*fabrictest.Command{c, protect}, nvme.Success)
}

// TestEveryElsewhere: admin commands that look at all namespaces do so on no reactor.
func TestEveryElsewhere(t *testing.T) {
	sub, _ := everySubsystem(t)
	r := newHarness(t, 1)
	r.target.shared.Reservations = &memoryStore{}
	r.must(r.target.AddSubsystem(sub))
	h := r.connectHost(0)
	all := func(fid nvme.FID, v uint32) *fabrictest.Command {
		return withNSID(setFeature(fid, v), nvme.NSIDAll)
	}
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	for i, c := range []*fabrictest.Command{
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)),
		logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0),
		identifyCommand(nvme.CNSController, 0), identifyCommand(nvme.CNSActiveNamespaces, 0),
		identifyCommand(nvme.CNSAllocatedNamespaces, 0),
		all(nvme.FeatureErrorRecovery, 1), all(nvme.FeatureReservationMask, 2),
		all(nvme.FeatureReservationPersist, 1), all(nvme.FeatureKeepAliveTimer, 0),
		selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll),
	} {
		r.send(h.admin, c)
		testutil.True(t, !c.Done, "command %d is done at once", i)
		r.allDone([]*fabrictest.Command{c}, nvme.Success)
	}
	ns, err := r.target.namespace(testSub, everyNamespaces)
	r.must(err)
	testutil.Equal(t, ns.ErrorRecovery.Load(), 1, "error recovery of the last namespace")
	testutil.Equal(t, ns.Reservations.Mask.Load(), 2, "reservation mask of the last namespace")
	testutil.True(t, ns.Reservations.State().PTPL, "persistence of the last namespace")
}
