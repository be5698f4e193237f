package target

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

const (
	keylessHost  = "nqn.2026-11.io.nvmf-target:without-key"
	ownDiscovery = "nqn.2026-11.io.nvmf-target:discovery"
	secureSub    = testSub + ":secure"
)

// nothingThere is the result of a Connect to a name that nobody has.
const nothingThere = 1<<16 | uint64(nvme.ConnectDataOffsetSUBNQN)

// securityHarness has a subsystem for hosts with a key and for one without, and a discovery
// service with a name of its own; both require r.
func securityHarness(t *testing.T, require subsystems.Security) *harness {
	r := newHarness(t, 1, subsystems.Config{
		NQN: testSub, Hosts: []string{testHost, keylessHost}, Security: require,
	})
	r.target.SetHostPolicy(testHost, testPolicy(t))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	r.must(r.target.SetDiscovery(subsystems.Discovery{NQN: ownDiscovery, Security: require}))
	return r
}

func testPolicy(t *testing.T) *auth.Policy {
	return &auth.Policy{
		Keys: []*auth.Key{authKey(t, hostSecret)}, Groups: []auth.Group{auth.GroupNull},
	}
}

// attempt connects a host, which authenticates with secret if it has to, and returns the outcome.
func (r *harness) attempt(sub, hostNQN, secret string) (outcome string, q *fabrictest.Queue) {
	r.t.Helper()
	a := adminArgs(sub)
	a.host = hostNQN
	q = r.dial(0)
	c := r.do(q, a.command())
	if st := c.CQE.Status() &^ nvme.More; !st.OK() {
		return fmt.Sprintf("%v %#x", st, c.CQE.Result()), q
	}
	outcome = "connected"
	if nvme.ConnectResult(c.CQE.DW0())&nvme.ConnectATR != 0 {
		h := &auth.Host{HostNQN: hostNQN, SubNQN: sub, Key: authKey(r.t, secret)}
		if err := r.authenticate(q, h); err != nil {
			r.until("the queue ends", func() bool { return q.Reason != nil })
			return "authentication failed", q
		}
		outcome = "authenticated"
	}
	r.ok(q, propertyGetCommand(nvme.PropertyCAP))
	return outcome, q
}

// TestNothingIsRevealed: a peer gets the same bytes whether there is no such subsystem, it may not
// use it, has no key, comes from elsewhere, or through another listener; on admin and I/O queues.
// Only the log shows the reason.
func TestNothingIsRevealed(t *testing.T) {
	r := securityHarness(t, subsystems.SecurityAuth)
	r.must(r.target.AddSubsystem(subsystems.Config{
		NQN: secureSub + "any", AllowAnyHost: true, Security: subsystems.SecurityAuth,
	}))
	r.must(r.target.AddSubsystem(subsystems.Config{
		NQN: secureSub + "listener", AllowAnyHost: true, Security: subsystems.SecurityAuth,
		Listeners: []string{"other"},
	}))
	const boundHost = "nqn.2026-11.io.nvmf-target:bound"
	r.target.SetHostPolicy(boundHost, testPolicy(t))
	r.target.SetHostNetworks(boundHost, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	_, q := r.attempt(testSub, testHost, hostSecret) // there is a controller
	cntlid := r.target.Controllers()[0].CNTLID
	testutil.MustTrue(t, cntlid != 0 && q.Reason == nil, "no controller: nothing is tested")
	for _, qid := range []uint16{0, 1} {
		var unknown []byte
		for _, c := range []struct{ sub, host, hint string }{
			{testSub + "unknown", otherHost, "no subsystem of the configuration"},
			{testSub + "unknown", testHost, "no subsystem of the configuration"},
			{testSub, otherHost, "add the host to hosts of the subsystem"},
			{testSub, "", "add the host to hosts of the subsystem"},
			{testSub, keylessHost, "give the host a dhchap_key"},
			{secureSub + "any", otherHost, "give the host a dhchap_key"},
			{secureSub + "any", "", "give the host a dhchap_key"},
			{secureSub + "any", boundHost, "networks of the host does not have this address"},
			{secureSub + "listener", testHost, "does not name this listener"},
			{nvme.DiscoveryNQN, otherHost, "give the host a dhchap_key"},
			{ownDiscovery, keylessHost, "give the host a dhchap_key"},
			{nvme.DiscoveryNQN, boundHost, "networks of the host does not have this address"},
		} {
			a := adminArgs(c.sub)
			a.host, a.qid = c.host, qid
			if qid > 0 {
				a.cntlid = cntlid
			}
			cmd := a.command()
			cmd.SQE.SetCID(7)
			q := r.dial(0)
			r.do(q, cmd)
			answer := bytes.Clone(cmd.CQE[:])
			if unknown == nil {
				unknown = answer
				testutil.MustTrue(t, cmd.CQE.Result() == nothingThere &&
					cmd.CQE.Status()&^nvme.More == refusedStatus, "%v, %#x", cmd.CQE.Status(),
					cmd.CQE.Result())
			}
			if !bytes.Equal(answer, unknown) || q.Reason != nil {
				t.Errorf("queue %d, %s for %q: % x, of an unknown name % x; %v", qid, c.sub, c.host,
					answer, unknown, q.Reason)
			}
			hint := c.hint
			if qid > 0 && strings.Contains(hint, "no subsystem") {
				hint = "the controller is one of another subsystem"
			}
			r.refusals = r.recorder.Kinds()[event.ConnectRefused] - 1
			r.wantRefusal()
			if last := fmt.Sprint(r.recorder.Refusals()[0]); !strings.Contains(last, hint) {
				t.Errorf("%s for %q is refused with %s, want %q", c.sub, c.host, last, hint)
			}
			r.ok(q, adminArgs(testSub).command()) // the peer may try again
			q.HangUp()
		}
	}
}
