package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

const otherHost = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555"

func asOther(a *connectArgs) { a.host = otherHost }

// connectOther connects otherHost, which takes turns with the hosts at testPeer, with an I/O queue.
func (r *harness) connectOther() *host { return r.connectHostInfo(1, from(2), asOther) }

// update changes the subsystem of the tests.
func (r *harness) update(change func(*subsystems.Config)) (gone <-chan struct{}) {
	r.t.Helper()
	cfg := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	change(&cfg)
	gone, err := r.target.UpdateSubsystem(cfg)
	r.must(err)
	return gone
}

// TestUpdateHosts: a host that is no longer allowed is disconnected, the I/O that the storage has
// is waited for, and others notice nothing.
func TestUpdateHosts(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 2, sub)
	h, o := r.connectHost(1), r.connectHost(1, asOther)
	dev.Hold(nil)
	r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	gone := r.update(func(c *subsystems.Config) {
		c.AllowAnyHost, c.Hosts = false, []string{otherHost}
	})
	r.w.Settle()
	testutil.True(t, h.admin.Closed() && h.io[0].Closed() && !o.admin.Closed() && !o.io[0].Closed(),
		"other queues are closed than those of the host that was removed")
	r.stays(gone)
	r.status(r.dial(0), adminArgs(testSub).command(), nvme.ConnectInvalidHost|nvme.DNR)
	dev.Release()
	r.must(untilGone(r.w, gone))
	l := r.target.Controllers()
	testutil.True(t, len(l) == 1 && l[0].NQN == otherHost, "controllers %+v", l)
	r.ok(o.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))

	r.must(untilGone(r.w, r.update(func(c *subsystems.Config) { c.Hosts = []string{otherHost} })))
	r.connectHost(0) // any host again
	testutil.True(t, !o.admin.Closed(), "a host was disconnected when others were allowed")
}

// TestUpdateWhileConnecting: a host is not admitted that was allowed when its Connect began.
func TestUpdateWhileConnecting(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	s := r.target.find(testSub)
	q := &session{h: r.raw[0], info: new(fabric.QueueInfo), port: r.target.ports.State(1)}
	c := newController(q, s, testHost, testHostID)
	r.must(untilGone(r.w, r.update(func(c *subsystems.Config) { c.AllowAnyHost = false })))
	r2 := s.Admit(&c.Controller, c.Admission)
	if r2.Status != nvme.ConnectInvalidHost || !r2.Final || s.lookup(c.CNTLID) == c {
		t.Errorf("%v", r2.Status)
	}
}
