package target

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
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
func securityHarness(t *testing.T, require Security) *harness {
	r := newHarness(t, 1, SubsystemConfig{
		NQN: testSub, Hosts: []string{testHost, keylessHost}, Security: require,
	})
	r.target.SetHostPolicy(testHost, testPolicy(t))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	r.must(r.target.SetDiscovery(DiscoveryConfig{NQN: ownDiscovery, Security: require}))
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

// TestSecurity: the outcome for each host and each policy, of a subsystem and of discovery.
func TestSecurity(t *testing.T) {
	hosts := []struct{ name, nqn, secret string }{
		{"unknown", otherHost, ""},
		{"without a key", keylessHost, ""},
		{"with a key", testHost, hostSecret},
		{"with a wrong key", testHost, controllerSecret},
	}
	nothing := fmt.Sprintf("%v %#x", refusedStatus, nothingThere)
	notAllowed := fmt.Sprintf("%v %#x", nvme.ConnectInvalidHost|nvme.DNR, 1<<16|512)
	const failed = "authentication failed"
	for require, want := range map[Security]struct{ sub, discovery [4]string }{
		0: {
			[4]string{notAllowed, "connected", "authenticated", failed},
			[4]string{"connected", "connected", "connected", "connected"},
		},
		SecurityAuth: {
			[4]string{nothing, nothing, "authenticated", failed},
			[4]string{nothing, nothing, "authenticated", failed},
		},
		SecurityTLS: {
			[4]string{nothing, nothing, nothing, nothing},
			[4]string{nothing, nothing, nothing, nothing},
		},
		SecurityAuth | SecurityTLS: {
			[4]string{nothing, nothing, nothing, nothing},
			[4]string{nothing, nothing, nothing, nothing},
		},
	} {
		r := securityHarness(t, require)
		for i, h := range hosts {
			for sub, want := range map[string]string{
				testSub: want.sub[i], nvme.DiscoveryNQN: want.discovery[i],
				ownDiscovery: want.discovery[i],
			} {
				got, q := r.attempt(sub, h.nqn, h.secret)
				testutil.Equal(t, got, want, "%v, host %s, %s", require, h.name, sub)
				testutil.True(t, got != "authenticated" || q.Peer == fabric.Allowed &&
					strings.Contains(r.log.String(), "host has authenticated"), "%s: peer %v", sub,
					q.Peer)
			}
		}
	}
	noKey, noTLS := association.ErrNoKey, association.ErrNoTLS
	for r, want := range map[Security][4]error{ // by authentication, and TLS
		0: {}, SecurityAuth: {noKey, noKey, nil, nil},
		SecurityTLS:                {noTLS, nil, noTLS, nil},
		SecurityAuth | SecurityTLS: {noKey, noKey, noTLS, nil},
	} {
		for i, want := range want {
			testutil.Is(t, r.lacks(i&2 != 0, i&1 != 0), want, "%v lacks", r)
		}
	}
}

// TestNothingIsRevealed: a peer gets the same bytes whether there is no such subsystem, it may not
// use it, has no key, comes from elsewhere, or through another listener; on admin and I/O queues.
// The log knows which.
func TestNothingIsRevealed(t *testing.T) {
	r := securityHarness(t, SecurityAuth)
	r.must(r.target.AddSubsystem(SubsystemConfig{
		NQN: secureSub + "any", AllowAnyHost: true, Security: SecurityAuth,
	}))
	r.must(r.target.AddSubsystem(SubsystemConfig{
		NQN: secureSub + "listener", AllowAnyHost: true, Security: SecurityAuth,
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
			r.refusals = r.recorder.Kinds()["connect refused"] - 1
			r.wantRefusal()
			if last := fmt.Sprint(r.recorder.Refusals()[0]); !strings.Contains(last, hint) {
				t.Errorf("%s for %q is refused with %s, want %q", c.sub, c.host, last, hint)
			}
			r.ok(q, adminArgs(testSub).command()) // the peer may try again
			q.HangUp()
		}
	}
}

// TestSecurityChanges: hosts that do not meet a new requirement are disconnected, with the reason,
// and others notice nothing. If less is required, no host notices anything.
func TestSecurityChanges(t *testing.T) {
	r := securityHarness(t, 0)
	const lateHost = "nqn.2026-11.io.nvmf-target:late"
	update := func(require Security) {
		_, err := r.target.UpdateSubsystem(SubsystemConfig{
			NQN: testSub, Hosts: []string{testHost, keylessHost, lateHost}, Security: require,
		})
		r.must(err)
		r.must(r.target.SetDiscovery(DiscoveryConfig{NQN: ownDiscovery, Security: require}))
		r.w.Settle()
	}
	connect := func(sub, nqn string, want string) *fabrictest.Queue {
		t.Helper()
		got, q := r.attempt(sub, nqn, hostSecret)
		testutil.Equal(t, got, want, "%s", nqn)
		return q
	}
	update(0)
	good := connect(testSub, testHost, "authenticated")
	keyless := connect(testSub, keylessHost, "connected")
	late := connect(testSub, lateHost, "connected")
	discovery := connect(nvme.DiscoveryNQN, testHost, "connected")
	r.target.SetHostPolicy(lateHost, testPolicy(t))
	r.target.EnforceKeys()
	r.w.Settle()
	testutil.True(t, !late.Closed(), "a new key disconnects its host")
	update(SecurityAuth)
	for what, q := range map[string]*fabrictest.Queue{
		"without a key": keyless, "that has got its key later": late, "at discovery": discovery,
	} {
		testutil.True(t, q.Closed() && errors.Is(q.Reason, association.ErrNoKey),
			"a host %s: ended %t, %v", what, q.Closed(), q.Reason)
	}
	r.ok(good, propertyGetCommand(nvme.PropertyCAP))
	connect(testSub, lateHost, "authenticated")
	discovery = connect(nvme.DiscoveryNQN, testHost, "authenticated")

	update(0)
	for _, q := range []*fabrictest.Queue{good, discovery} {
		r.ok(q, propertyGetCommand(nvme.PropertyCAP))
	}
	r.must(r.authenticate(discovery, &auth.Host{ // again
		HostNQN: testHost, SubNQN: nvme.DiscoveryNQN, Key: authKey(t, hostSecret),
	}))
	r.target.SetHostPolicy(testHost, nil)
	r.target.EnforceKeys()
	r.w.Settle()
	r.ok(good, propertyGetCommand(nvme.PropertyCAP))
	r.target.SetHostPolicy(testHost, testPolicy(t))
	update(SecurityAuth)
	r.ok(good, propertyGetCommand(nvme.PropertyCAP)) // its key has come back
	r.ok(discovery, propertyGetCommand(nvme.PropertyCAP))
	r.target.SetHostPolicy(testHost, nil)
	r.ok(good, propertyGetCommand(nvme.PropertyCAP)) // until
	r.target.EnforceKeys()
	r.w.Settle()
	if !good.Closed() || !discovery.Closed() || !errors.Is(good.Reason, association.ErrNoKey) {
		t.Errorf("a host that has lost its key: ended %t and %t, %v", good.Closed(),
			discovery.Closed(), good.Reason)
	}
}

// TestSecurityAndDiscovery: a host without a key is not told of subsystems that it cannot use, and
// gets an event when that changes. A persistent discovery controller that has authenticated gets
// events and referrals as others do.
func TestSecurityAndDiscovery(t *testing.T) {
	r := securityHarness(t, 0)
	r.must(r.target.AddSubsystem(SubsystemConfig{
		NQN: testSub + "s", AllowAnyHost: true, Security: SecurityAuth,
	}))
	h := discoveryHost(r, "192.0.2.1:4420")
	event := func() *fabrictest.Command {
		t.Helper()
		r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventDiscoveryChanged)))
		return r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	want := func(names string) {
		t.Helper()
		if got := h.names(); got != ownDiscovery+"1 "+names { // the service is first
			t.Errorf("the log has %q, want %q", got, names)
		}
	}
	want("1 s1")
	changed := event()
	r.target.SetHostPolicy(testHost, nil)
	r.target.EnforceKeys()
	r.settle()
	testutil.True(t, changed.Done, "no event")
	want("1")
	r.target.SetHostPolicy(testHost, testPolicy(t))
	r.target.EnforceKeys()
	want("1 s1")

	cfg := DiscoveryConfig{NQN: ownDiscovery, Security: SecurityAuth}
	r.must(r.target.SetDiscovery(cfg))
	outcome, q := r.attempt(ownDiscovery, testHost, hostSecret)
	testutil.MustEqual(t, outcome, "authenticated", "")
	h.admin = q
	r.ok(q, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	want("1 s1")
	changed = event()
	cfg.Referrals = []discovery.Referral{{
		Addr: port(0, nvme.TransportTCP, "192.0.2.7:8009").Addr, NQN: nvme.DiscoveryNQN,
	}}
	r.must(r.target.SetDiscovery(cfg))
	r.settle()
	testutil.True(t, changed.Done, "no event")
	_, list := h.discoveryLog()
	testutil.True(t, len(list) == 4 && list[3].SUBTYPE == nvme.SubsystemReferral, "%d entries",
		len(list))
}
