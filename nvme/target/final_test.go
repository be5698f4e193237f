package target

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

const (
	notHere = refusedStatus
	forGood = refusedStatus | nvme.DNR
)

// TestChangedMeanwhile: no refusal is final if a change ends, or begins, after Connect has begun:
// the missing host or subsystem may be back.
func TestChangedMeanwhile(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, Hosts: []string{otherHost}},
		subsystems.Config{NQN: testSub + "2", AllowAnyHost: true})
	r.remove(func() (<-chan struct{}, error) { return r.target.RemoveSubsystem(testSub+"2", true) })
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
	r := securityHarness(t, subsystems.SecurityAuth)
	outcome := func(what string) {
		t.Helper()
		got, _ := r.attempt(testSub, testHost, hostSecret)
		testutil.Equal(t, got, fmt.Sprintf("%v %#x", notHere, nothingThere), "%s", what)
	}
	r.must(untilGone(r.w, r.update(func(c *subsystems.Config) {
		c.AllowAnyHost, c.Hosts, c.Security = false, []string{keylessHost}, subsystems.SecurityAuth
	})))
	outcome("the host is removed")
	r.removeSubsystem()
	outcome("the subsystem is removed")
}
