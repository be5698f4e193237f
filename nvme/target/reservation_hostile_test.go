package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// TestStoreFailsLate: a change that is stored although Save has failed does not come back with a
// restart, since its command has failed.
func TestStoreFailsLate(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 1, store)
	a := r.numbered(0, 1)
	r.ok(a.io[0], registerPTPL(1))
	r.ok(a.io[0], acquire(1, nvme.WriteExclusive))
	stored := func() nvme.ReservationType { return store.Load(testSub, 1).Type }
	store.failures = []bool{true}
	r.status(a.io[0], release(1, nvme.WriteExclusive), nvme.InternalError)
	testutil.True(t, stored() == nvme.WriteExclusive, "the reservation would end with a restart")
	store.failures = []bool{true, false}
	r.status(a.io[0], release(1, nvme.WriteExclusive), nvme.InternalError)
	r.ok(a.io[0], acquire(1, nvme.WriteExclusive))
	testutil.True(t, stored() == nvme.WriteExclusive,
		"the reservation would end with a restart, after another command")
}

// TestManyFences: commands that wait for a device which hangs hold no more memory than there are
// IOs and commands.
func TestManyFences(t *testing.T) {
	const writes, rounds = 20, 30
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r := newHarness(t, 1, sub)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // opens the channel
	dev.Hold(nil)
	for i := range writes {
		r.send(b.io[0], rw(nvme.NVMWrite, 1, uint64(i), 1, make([]byte, 512)))
	}
	r.w.Settle()
	ns, err := r.target.namespace(testSub, 1)
	r.must(err)
	ch := r.raw[0].channel(ns)
	var last *fabrictest.Command
	for range rounds {
		for range rounds {
			last = r.send(a.io[0], acquire(1, nvme.WriteExclusive))
			a.untilChanged(isReserved)
			r.ok(a.io[0], release(1, nvme.WriteExclusive))
		}
		r.w.Settle()
		has := ch.State().Busy
		testutil.MustTrue(t, has.Awaited == writes && has.Fences <= 4*rounds, "%+v", has)
		r.w.Advance(drainDeadline + time.Second)
		testutil.MustTrue(t, last.Done && !last.CQE.Status().OK(), "done %v, %v", last.Done,
			last.CQE.Status())
	}
	last = r.send(a.io[0], acquire(1, nvme.WriteExclusive))
	dev.Release()
	r.until("the device is back", func() bool { return last.Done })
	if st := last.CQE.Status(); !st.OK() || ch.State().Busy.Fences+ch.State().Busy.Awaited > 0 {
		t.Errorf("%v, %d fences, %d IOs", st, ch.State().Busy.Fences, ch.State().Busy.Awaited)
	}
}

// TestPersistAll: a controller has one command at a time that changes many namespaces.
func TestPersistAll(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 2, store)
	a := r.numbered(0, 1)
	persist := func(nsid uint32) *fabrictest.Command {
		c := setFeature(nvme.FeatureReservationPersist, 1)
		c.SQE.SetNSID(nsid)
		return c
	}
	_, free := store.hold()
	first, one := r.send(a.admin, persist(nvme.NSIDAll)), r.send(a.admin, persist(1))
	c := r.target.find(testSub).lookup(1)
	r.until("the first has begun", func() bool { return c.changing })
	r.status(a.admin, persist(nvme.NSIDAll), nvme.CommandInterrupted)
	free()
	r.until("the others complete", func() bool { return first.Done && one.Done })
	r.allDone([]*fabrictest.Command{first, one}, nvme.Success)
	r.ok(a.admin, persist(nvme.NSIDAll))
}

// TestReservationOfLostNamespace: a command that waits for commands of other hosts changes nothing
// once its host may no longer use the namespace.
func TestReservationOfLostNamespace(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 1, store)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	entered, free := store.hold()
	first := r.send(a.io[0], registerPTPL(1))
	<-entered
	late := r.send(b.io[0], register(2))
	r.w.Settle()
	cfg := namespaces.Config{NSID: 1, Hosts: []string{a.args.host}}
	r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	free()
	r.until("the commands complete", func() bool { return first.Done && late.Done })
	testutil.Equal(t, late.CQE.Status()&^nvme.More, inactiveNamespace, "")
	s, _ := a.report()
	testutil.True(t, s.REGCTL == 1, "%d hosts are registered", s.REGCTL)
}
