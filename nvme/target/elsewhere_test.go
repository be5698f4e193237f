package target

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// occupy keeps the workers of a target busy until release is called. If they are free, they are
// busy when it returns, otherwise after the work that they do now.
func (r *harness) occupy(free bool) (release func()) {
	stop, begun := make(chan struct{}), make(chan struct{}, turns.MaxWorkers())
	for i := range turns.MaxWorkers() {
		r.target.shared.Workers.Submit(&turns.Job{
			Owner: subnet.Owner{NQN: fmt.Sprint(i)}, Done: func() {},
			Run: func() {
				begun <- struct{}{}
				<-stop
			},
		})
		if free {
			<-begun
		}
	}
	return func() { close(stop) }
}

// TestElsewhereInTurns: a host that asks for all namespaces, controllers or subsystems again and
// again does not keep others waiting, whatever it asks for. Commands of queues that have ended, and
// commands that were sent too late, are not carried out.
func TestElsewhereInTurns(t *testing.T) {
	list := func() *fabrictest.Command { return identifyCommand(nvme.CNSActiveNamespaces, 0) }
	for name, make := range map[string]func() *fabrictest.Command{
		"list": list,
		"health": func() *fabrictest.Command {
			return logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0)
		},
		"feature": func() *fabrictest.Command {
			return withNSID(setFeature(nvme.FeatureErrorRecovery, 1), nvme.NSIDAll)
		},
		"ANA log": func() *fabrictest.Command { return logCommand(nvme.LogANA, 4096, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newHarness(t, 1, ramSubsystem(t, 1))
			other := info(nvme.TransportTCP)
			other.Remote = testLocal
			a, b, ended := r.connectHost(0), r.connectHostInfo(0, other), r.connectHost(0)
			release := r.occupy(true)
			for range 20 {
				r.send(a.admin, make())
				r.send(ended.admin, make())
			}
			ended.hangUp()
			r.w.Settle()
			testutil.Equal(t, ended.admin.Outstanding(), 0, "commands of a queue that has ended")
			ran, last := 20, list()
			last.Then = func() { ran -= a.admin.Outstanding() }
			r.send(b.admin, last)
			release()
			r.until("all are served", func() bool {
				return last.Done && a.admin.Outstanding() == 0
			})
			testutil.True(t, ran <= 2*turns.MaxWorkers(), "%d commands were served before", ran)
		})
	}
}

// TestChangesInTurn: the reservations of all namespaces are changed in the turn of the host.
func TestChangesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1)
		r.target.shared.Reservations = &memoryStore{}
		r.must(r.target.AddSubsystem(ramSubsystem(t, 3)))
		h := r.connectHost(0)
		first := r.occupy(true)
		c := withNSID(setFeature(nvme.FeatureReservationPersist, 1), nvme.NSIDAll)
		r.send(h.admin, c)
		second := r.occupy(false) // after the namespaces were looked at
		first()
		for range 5 {
			synctest.Wait()
			r.w.Settle()
		}
		testutil.True(t, !c.Done, "the changes do not wait for their turn")
		second()
		r.until("the command completes", func() bool { return c.Done })
		testutil.True(t, c.CQE.Status().OK(), "%v", c.CQE.Status())
	})
}

// TestEnableTooLate: a Property Set that enables the controller and fails, because the machine is
// too busy, changes nothing. The host may repeat it.
func TestEnableTooLate(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	release := r.occupy(true)
	enable := func() *fabrictest.Command {
		return propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux))
	}
	c := r.send(h.admin, enable())
	r.w.Settle()
	r.w.Advance(admin.AnswerWait)
	r.w.Settle()
	testutil.MustTrue(t, c.Done, "the command waits on")
	testutil.Equal(t, c.CQE.Status()&^nvme.More, nvme.InternalError, "enabled too late")
	testutil.True(t, h.property(nvme.PropertyCC) == 0 && h.csts() == 0, "CC %#x, CSTS %#x",
		h.property(nvme.PropertyCC), h.csts())
	release()
	r.ok(h.admin, enable())
	testutil.True(t, h.property(nvme.PropertyCC) == uint64(nvme.CCLinux) && h.csts().RDY(),
		"CSTS %#x", h.csts())
	h.connectIO(0)
}
