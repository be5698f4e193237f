package target

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

const (
	hostSecret       = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	controllerSecret = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
)

func authKey(t testing.TB, text string) *auth.Key {
	t.Helper()
	k := testutil.Value(auth.ParseKey(text))(t)
	testutil.Secret(t, text)
	return k
}

// authHarness has a host with a key, which the policy that is returned wants.
func authHarness(t *testing.T, reactors int) (*harness, *auth.Policy) {
	r := newHarness(t, reactors, ramSubsystem(t, 1))
	p := &auth.Policy{
		Keys: []*auth.Key{authKey(t, hostSecret)}, ControllerKey: authKey(t, controllerSecret),
		Groups: []auth.Group{auth.GroupNull},
	}
	r.target.SetHostPolicy(testHost, p)
	return r, p
}

func testHostSide(t testing.TB) *auth.Host {
	return &auth.Host{
		HostNQN: testHost, SubNQN: testSub, Key: authKey(t, hostSecret),
		ControllerKey: authKey(t, controllerSecret),
	}
}

func authCommand(typ nvme.FabricsType, data []byte) *fabrictest.Command {
	c := command(nvme.FabricsOpcode, 0, data)
	c.SQE.Auth().Set(typ, uint32(len(data)))
	return c
}

func (r *harness) authSend(q *fabrictest.Queue, m []byte) {
	r.t.Helper()
	r.ok(q, authCommand(nvme.FabricsAuthSend, m))
}

func (r *harness) authReceive(q *fabrictest.Queue) []byte {
	r.t.Helper()
	return r.ok(q, authCommand(nvme.FabricsAuthReceive, make([]byte, auth.MaxMessage))).Data
}

// authenticate runs an exchange on a queue.
func (r *harness) authenticate(q *fabrictest.Queue, h *auth.Host) error {
	r.t.Helper()
	r.authSend(q, h.Negotiate(7))
	m, err := h.Challenged(r.authReceive(q))
	if err != nil {
		return err
	}
	r.authSend(q, m)
	m, err = h.Succeeded(r.authReceive(q))
	if m != nil {
		r.authSend(q, m)
	}
	return err
}

// connectUnproven connects a queue of a host that has to authenticate.
func (r *harness) connectUnproven(reactor int, a connectArgs) (*fabrictest.Queue, uint16) {
	r.t.Helper()
	q := r.dial(reactor)
	res := nvme.ConnectResult(r.ok(q, a.command()).CQE.DW0())
	testutil.MustTrue(r.t, res&nvme.ConnectATR != 0, "Connect requires no authentication")
	return q, res.CNTLID()
}

// TestAuthenticationFails: the host reads why, then its queue ends; after ten times it has to wait.
func TestAuthenticationFails(t *testing.T) {
	const mostFailures = 10
	r, p := authHarness(t, 1)
	now := time.Now()
	r.target.shared.Auth.Now = func() time.Time { return now }
	wrong := testHostSide(t)
	wrong.Key = authKey(t, controllerSecret)
	for range mostFailures {
		admin, _ := r.connectUnproven(0, adminArgs(testSub))
		_, refused := r.authenticate(admin, wrong).(auth.Refused)
		testutil.MustTrue(t, refused, "a wrong key is not refused")
		r.until("the queue ends", func() bool { return admin.Reason != nil })
	}
	r.status(r.dial(0), adminArgs(testSub).command(), nvme.ConnectControllerBusy)
	_, failed := r.target.Authentications()
	testutil.True(t, failed == mostFailures, "%d authentications have failed", failed)
	elsewhere := info(nvme.TransportTCP)
	elsewhere.Remote = netip.MustParseAddrPort("192.0.2.10:1")
	q := r.dialInfo(0, elsewhere)
	r.ok(q, adminArgs(testSub).command())
	r.must(r.authenticate(q, testHostSide(t)))
	now = now.Add(authn.Pause)
	admin, _ := r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))

	mute := testHostSide(t)
	p.ControllerKey = p.Keys[0]
	testutil.True(t, r.authenticate(admin, mute) != nil,
		"the host accepts a controller with another key")
	r.until("the queue ends after AUTH_Failure2", func() bool { return admin.Reason != nil })
	n, failed := r.target.Authentications()
	testutil.True(t, n == 2 && failed == mostFailures+1, "%d authentications, %d failed", n, failed)
	for _, secret := range []string{hostSecret, controllerSecret} {
		testutil.True(t, !strings.Contains(r.log.String(), secret[10:40]), "a key is in the log")
	}
	testutil.True(t, strings.Contains(r.log.String(), "authentication failed"),
		"failures are not logged")
}

// TestAuthenticationLate: a message that waits ends with its queue, and a deadline that passes
// meanwhile is not a failure of the host.
func TestAuthenticationLate(t *testing.T) {
	r, _ := authHarness(t, 1)
	p := r.target.shared.Auth
	defer occupy(p)() // so that it is never processed
	for range 3 {
		late, _ := r.connectUnproven(0, adminArgs(testSub))
		r.send(late, authCommand(nvme.FabricsAuthSend, testHostSide(t).Negotiate(1)))
		x := r.sessionOf(late).auth
		testutil.MustTrue(t, x.Busy(), "no message waits: nothing is tested")
		r.w.Advance(time.Duration(connectDeadline) + time.Second)
		r.until("the queue ends", func() bool { return late.Closed() })
		testutil.True(t, !x.Busy(), "the message of a queue that has ended is kept")
	}
	_, failed := p.Counts()
	testutil.True(t, failed == 0, "the target is late, and the host has failed")
}

// TestAuthenticationMemory: memory held by peers from elsewhere does not keep out a host that has
// authenticated before.
func TestAuthenticationMemory(t *testing.T) {
	r, _ := authHarness(t, 1)
	admin, _ := r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))
	elsewhere := info(nvme.TransportTCP)
	elsewhere.Remote = netip.MustParseAddrPort("192.0.2.10:1")
	r.dialInfo(0, elsewhere)
	h := r.raw[0]
	var held mem.Allocation
	for s := range h.sessions.All() {
		testutil.MustTrue(t, s.info.Remote != elsewhere.Remote ||
			h.memory.Alloc(&held, s.flow, s.flow.Host.Limit), "no memory")
	}
	defer held.Free()
	admin, _ = r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))
}

// TestAuthenticationKept: on a queue that serves nothing but concatenation an exchange has its
// record, and while a message is being processed its deadline does not look at the exchange.
func TestAuthenticationKept(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.Security = subsystems.SecurityAuth | subsystems.SecurityTLS
	r := newHarness(t, 1, sub)
	r.target.SetHostPolicy(testHost, &auth.Policy{Keys: []*auth.Key{authKey(t, hostSecret)}})
	r.must(r.target.AddPort(discovery.Port{
		ID: 1, Addr: fabric.Addr{Transport: nvme.TransportTCP, AddrPort: testLocal},
		TLS: fabric.TLSAllowed,
	}))
	h := &auth.Host{
		HostNQN: testHost, SubNQN: testSub, Key: authKey(t, hostSecret),
		Concatenation: auth.NewPSK, Groups: []auth.Group{auth.FFDHE2048},
	}
	for _, pending := range []bool{false, true} {
		q, _ := r.connectUnproven(0, adminArgs(testSub))
		r.must(r.authenticate(q, h))
		want := errKeptQueue
		if pending {
			want = errUnfinished
			end := occupy(r.target.shared.Auth)
			defer end()
			r.send(q, authCommand(nvme.FabricsAuthSend, h.Negotiate(2)))
		}
		r.w.Advance(time.Duration(connectDeadline) + time.Second)
		r.until("the queue ends", func() bool { return q.Closed() })
		testutil.True(t, q.Reason == want, "pending %v: %v", pending, q.Reason)
	}
	testutil.Equal(t, strings.Count(r.log.String(), "host has authenticated"), 2,
		"of 2 exchanges have a line")
}

// occupy keeps all that process messages busy until end is called.
func occupy(p *authn.Hosts) (end func()) {
	begun, ended := make(chan bool), make(chan bool)
	for range turns.MaxWorkers() {
		p.Submit(&turns.Job{Run: func() { begun <- true; <-ended }, Done: func() {}})
		<-begun
	}
	return func() { close(ended) }
}

// sessionOf returns the session of a queue.
func (r *harness) sessionOf(q *fabrictest.Queue) *session {
	for _, h := range r.raw {
		for s := range h.sessions.All() {
			if s.info == q.Info() {
				return s
			}
		}
	}
	r.t.Fatal("the queue has ended")
	return nil
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
