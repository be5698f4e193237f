package target

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestUnprovenQueue: an unproven I/O queue takes no place of the controller, and is not listed as a
// queue of the host.
func TestUnprovenQueue(t *testing.T) {
	r, _ := authHarness(t, 2)
	admin, cntlid := r.connectUnproven(0, adminArgs(testSub))
	listed := func(queues int) {
		t.Helper()
		list := r.target.Controllers()
		if len(list) == 0 && queues == 0 {
			return
		}
		testutil.True(t, len(list) == 1 && list[0].Queues == queues,
			"%+v, want a controller with %d queues", list, queues)
	}
	names := func() (n int) {
		for _, c := range r.connections() {
			if c.Host != "" {
				n++
			}
		}
		return n
	}
	other := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	other.admin.HangUp()
	r.until("it is gone", func() bool { return len(r.target.Controllers()) == 0 })
	listed(0)
	r.must(r.authenticate(admin, testHostSide(t)))
	listed(1)
	r.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	r.connectUnproven(0, adminArgs(testSub)) // a stranger's
	ids := r.ok(admin, identifyCommand(nvme.CNSControllers, 0)).Data
	if want := nvme.AppendIdentifierList(nil, []uint16{cntlid}); !bytes.Equal(ids, want) {
		t.Errorf("the list of controllers is % x", ids[:8])
	}

	a := (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(1)
	stranger, _ := r.connectUnproven(1, a)
	listed(1)
	io, _ := r.connectUnproven(1, a)
	r.must(r.authenticate(io, testHostSide(t)))
	listed(2)
	data := make([]byte, 512)
	r.ok(io, rw(nvme.NVMRead, 1, 0, 1, data))
	r.status(r.dial(1), a.command(), nvme.CommandSequenceError)
	testutil.Equal(t, names(), 2, "connections have the name of the host")
	r.must(r.authenticate(stranger, testHostSide(t))) // it was the host's, and comes too late
	r.until("the second queue ends", func() bool { return stranger.Closed() })
	testutil.True(t, errors.Is(stranger.Reason, errNotAttached), "the second queue ends: %v",
		stranger.Reason)
	r.ok(io, rw(nvme.NVMRead, 1, 0, 1, data))
	listed(2)

	left, _ := r.connectUnproven(1, (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(2))
	admin.HangUp()
	r.until("the controller is gone", func() bool { return len(r.target.Controllers()) == 0 })
	r.must(r.authenticate(left, testHostSide(t)))
	r.until("its last queue ends", func() bool { return left.Closed() })
}

// TestReauthenticationFails: from then on nothing is served, also before the host reads why.
func TestReauthenticationFails(t *testing.T) {
	r, _ := authHarness(t, 1)
	admin, cntlid := r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))
	r.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	io, _ := r.connectUnproven(0, (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(1))
	r.must(r.authenticate(io, testHostSide(t)))
	wrong := testHostSide(t)
	wrong.Key = authKey(t, controllerSecret)
	r.authSend(io, wrong.Negotiate(1))
	m, err := wrong.Challenged(r.authReceive(io))
	r.must(err)
	data := make([]byte, 512)
	r.ok(io, rw(nvme.NVMRead, 1, 0, 1, data)) // nothing is decided yet
	r.authSend(io, m)
	r.status(io, rw(nvme.NVMRead, 1, 0, 1, data), authenticationRequired)
	testutil.Is(t, testutil.Err(wrong.Succeeded(r.authReceive(io))),
		auth.Refused{Reason: auth.AuthenticationFailed}, "the host reads")
	r.until("the queue ends", func() bool { return io.Closed() })
	r.ok(admin, identifyCommand(nvme.CNSController, 0))
	r.connectUnproven(0, (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(1))
}

// TestAuthenticationRecordShares: exchanges that are not finished leave the records of wrong keys
// their lines, however many addresses they come from.
func TestAuthenticationRecordShares(t *testing.T) {
	r, _ := authHarness(t, 1)
	const begun = 300
	for i := range begun {
		from := info(nvme.TransportTCP)
		from.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i / 10)}), 1)
		q := r.dialInfo(0, from)
		r.ok(q, adminArgs(testSub).command())
		q.HangUp()
	}
	if n := strings.Count(r.log.String(), "authentication not finished"); n == 0 || n == begun {
		t.Fatalf("%d lines of %d exchanges: nothing is tested", n, begun)
	}
	wrong := testHostSide(t)
	wrong.Key = authKey(t, controllerSecret)
	admin, _ := r.connectUnproven(0, adminArgs(testSub))
	testutil.MustTrue(t, r.authenticate(admin, wrong) != nil, "a wrong key counts")
	testutil.True(t, strings.Contains(r.log.String(), `msg="authentication failed"`),
		"a wrong key has no record")
}
