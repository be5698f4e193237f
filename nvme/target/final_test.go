package target

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	notHere = connectRefused
	forGood = connectRefused | nvme.DNR
)

// TestRemovedForGood: a subsystem that was removed is final for hosts, on admin and on I/O queues,
// over both transports; what is missing for another reason is not.
func TestRemovedForGood(t *testing.T) {
	for _, tr := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		r := newHarness(t, 1, ramSubsystem(t, 1))
		again := ramSubsystem(t, 1)
		q := func() *fabrictest.Queue { return r.dialInfo(0, info(tr)) }
		connect := func(what string, nqn string, want nvme.Status) {
			t.Helper()
			c := r.do(q(), adminArgs(nqn).command())
			if st := c.CQE.Status(); st != want {
				t.Errorf("%s: %v, want %v", what, st, want)
			}
		}
		h := r.connectHostInfo(1, info(tr))
		connect("a name that nobody has", testSub+"2", notHere)
		done := r.target.Changing()
		r.removeSubsystem()
		connect("while something changes", testSub, notHere)
		done()
		connect("removed", testSub, forGood)
		r.status(q(), h.ioArgs(2).command(), forGood)
		r.must(r.target.AddSubsystem(again))
		connect("back", testSub, nvme.Success)
		r.during(r.target.Close)
	}
}

// TestHostRemovedForGood: a host that was removed from a subsystem is refused for good, but not
// while something changes, and may come back.
func TestHostRemovedForGood(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, Hosts: []string{testHost, otherHost}})
	only := func(hosts ...string) {
		r.must(untilGone(r.w, r.update(func(c *SubsystemConfig) {
			c.AllowAnyHost, c.Hosts = false, hosts
		})))
	}
	refused := func(want nvme.Status) {
		t.Helper()
		r.status(r.dial(0), adminArgs(testSub).command(), want)
	}
	r.connectHost(0)
	done := r.target.Changing()
	only(otherHost)
	refused(nvme.ConnectInvalidHost)
	only(otherHost, testHost) // it is undone
	r.connectHost(0)
	only(otherHost)
	done()
	refused(nvme.ConnectInvalidHost | nvme.DNR)
	only(otherHost, testHost)
	r.connectHost(0)
}

// TestChangedMeanwhile: no refusal is final if a change ends, or begins, after Connect has begun:
// what was missing then may be back.
func TestChangedMeanwhile(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, Hosts: []string{otherHost}},
		SubsystemConfig{NQN: testSub + "2", AllowAnyHost: true})
	r.remove(func() (<-chan struct{}, error) {
		return r.target.RemoveSubsystem(testSub+"2", true)
	})
	for nqn, want := range map[string]nvme.Status{
		testSub: nvme.ConnectInvalidHost, testSub + "2": notHere,
	} {
		connect := func(meanwhile func(), want nvme.Status) {
			t.Helper()
			qi := info(nvme.TransportTCP)
			qi.TLS = &fabric.TLS{HostNQN: testHost, SubNQN: nqn, Counts: func() bool {
				meanwhile()
				return true
			}}
			r.status(r.dialInfo(0, qi), adminArgs(nqn).command(), want)
		}
		connect(func() {}, want|nvme.DNR)
		connect(r.target.Changing(), want)
		connect(func() { r.target.Changing()() }, want)
		connect(func() {}, want|nvme.DNR)
	}
}

// TestConcealedForGood: where security is required, nothing says that there was a subsystem, or
// that a host was allowed.
func TestConcealedForGood(t *testing.T) {
	r := securityHarness(t, SecurityAuth)
	outcome := func(what string) {
		t.Helper()
		got, _ := r.attempt(testSub, testHost, hostSecret)
		if want := fmt.Sprintf("%v %#x", notHere, nothingThere); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	r.must(untilGone(r.w, r.update(func(c *SubsystemConfig) {
		c.AllowAnyHost, c.Hosts, c.Security = false, []string{keylessHost}, SecurityAuth
	})))
	outcome("the host is removed")
	r.removeSubsystem()
	outcome("the subsystem is removed")
}

// TestGoneIsBounded: a bounded number of removed names is remembered, the last one among them.
func TestGoneIsBounded(t *testing.T) {
	r := newHarness(t, 1)
	name := func(i int) string { return fmt.Sprint(testSub, i) }
	many := map[string]bool{}
	for i := range maxGone {
		many[name(i)] = true
	}
	r.target.gone.Store(&many)
	r.target.mu.Lock()
	r.target.setGone(name(maxGone), true)
	r.target.mu.Unlock()
	if n := len(*r.target.gone.Load()); n != maxGone {
		t.Errorf("%d names", n)
	}
	r.status(r.dial(0), adminArgs(name(maxGone)).command(), forGood)
}
