package target

import (
	"bytes"
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

// TestAuthentication: nothing is served before the host has authenticated, on admin and on I/O
// queues, and everything afterwards; it may authenticate again.
func TestAuthentication(t *testing.T) {
	r, _ := authHarness(t, 2)
	admin, cntlid := r.connectUnproven(0, adminArgs(testSub))
	for _, c := range []*fabrictest.Command{
		identifyCommand(nvme.CNSController, 0), propertyGetCommand(nvme.PropertyCAP),
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)), logCommand(2, 512, 0),
		command(nvme.AdminAsyncEventReq, 0, nil), command(nvme.AdminKeepAlive, 0, nil),
		command(0xFF, 0, nil), adminArgs(testSub).command(),
	} {
		want := authenticationRequired
		r.status(admin, c, want)
	}
	testutil.True(t, admin.Peer == fabric.Unproven,
		"the queue of a host that has not authenticated is an allowed host's")
	c := r.connections()[0]
	testutil.True(t, !c.Authenticated, "before authentication: %+v", c)
	testutil.True(t, !strings.Contains(r.log.String(), "controller created"),
		"a host that has not authenticated appears in the log as connected")
	r.must(r.authenticate(admin, testHostSide(t)))
	testutil.True(t, admin.Peer == fabric.Allowed && admin.Claim.Proven,
		"the queue stays in the budget of strangers")
	testutil.True(t, admin.Holds.Load() != 0 && !admin.Held.Load(),
		"the queue could be evicted while a message was processed, or never can be")
	r.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	r.ok(admin, identifyCommand(nvme.CNSController, 0))

	a := (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(1)
	io, _ := r.connectUnproven(1, a)
	data := bytes.Repeat([]byte{7}, 512)
	r.status(io, rw(nvme.NVMWrite, 1, 0, 1, data), authenticationRequired)
	r.status(io, rw(nvme.NVMRead, 1, 0, 1, data), authenticationRequired)
	r.must(r.authenticate(io, testHostSide(t)))
	r.ok(io, rw(nvme.NVMWrite, 1, 0, 1, data))

	for _, q := range []*fabrictest.Queue{admin, io} { // and again
		r.must(r.authenticate(q, testHostSide(t)))
	}
	for _, c := range r.connections() {
		testutil.Equal(t, SecurityOf(&c), SecurityAuth, "queue %d", c.QID)
	}
	n, failed := r.target.Authentications()
	testutil.True(t, n == 4 && failed == 0, "%d authentications, %d failed", n, failed)
	r.ok(admin, identifyCommand(nvme.CNSController, 0))
	r.ok(io, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	if c := r.status(admin, authCommand(nvme.FabricsAuthReceive, make([]byte, 4)),
		invalidField); c.Returned > 0 {
		t.Error("data in a refusal")
	}
}

// TestAuthenticationKeys: hosts without a key, other hosts, discovery, and keys that change while a
// host is connected.
func TestAuthenticationKeys(t *testing.T) {
	r, p := authHarness(t, 1)
	other := func(a *connectArgs) { a.host += "x" }
	r.connectHost(1, other).hangUp()
	q := r.connectHost(0, other)
	r.status(q.admin, authCommand(nvme.FabricsAuthSend, make([]byte, 72)), invalidOpcode)
	d := r.dial(0)
	testutil.True(t, r.ok(d, adminArgs(nvme.DiscoveryNQN).command()).CQE.DW0()>>16 == 0,
		"discovery requires authentication")

	changed := *p
	changed.Keys = append([]*auth.Key{authKey(t, controllerSecret)}, p.Keys...)
	r.target.SetHostPolicy(testHost, &changed)
	admin, _ := r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))
	changed.Keys = changed.Keys[:1]
	r.target.SetHostPolicy(testHost, &changed)
	r.ok(admin, propertyGetCommand(nvme.PropertyCAP)) // the host stays
	testutil.True(t, r.authenticate(admin, testHostSide(t)) != nil,
		"the host authenticates with a key that was removed")
	r.until("the controller ends", func() bool { return admin.Reason != nil })

	r.target.SetHostPolicy(testHost, p)
	admin, _ = r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))
	r.target.SetHostPolicy(testHost, nil)
	r.status(admin, authCommand(nvme.FabricsAuthSend, testHostSide(t).Negotiate(1)), invalidOpcode)
	r.ok(admin, propertyGetCommand(nvme.PropertyCAP)) // the host stays
	h := r.connectHost(1)                             // without authentication
	r.target.SetHostPolicy(testHost, p)
	h.connectIO(0) // and it stays so
	r.must(r.authenticate(h.admin, testHostSide(t)))
}

// TestAuthenticationFails: the host reads why, then its queue ends; after ten times it has to wait.
func TestAuthenticationFails(t *testing.T) {
	const mostFailures = 10
	r, p := authHarness(t, 1)
	now := time.Now()
	r.target.auth.Now = func() time.Time { return now }
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
// meanwhile is no failure of the host.
func TestAuthenticationLate(t *testing.T) {
	r, _ := authHarness(t, 1)
	p := r.target.auth
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

// TestAuthenticationUnfinished: a host that stops at any step is disconnected, also with a message
// that it has not received, and also after an earlier authentication.
func TestAuthenticationUnfinished(t *testing.T) {
	r, _ := authHarness(t, 1)
	for step := range 5 {
		admin, _ := r.connectUnproven(0, adminArgs(testSub))
		h := testHostSide(t)
		if step == 4 {
			r.must(r.authenticate(admin, h))
		}
		if step >= 1 {
			r.authSend(admin, h.Negotiate(1))
		}
		if step == 2 || step == 3 {
			m, err := h.Challenged(r.authReceive(admin))
			r.must(err)
			if step == 3 {
				r.authSend(admin, m)
			}
		}
		r.w.Advance(time.Duration(connectDeadline) - time.Second)
		testutil.True(t, admin.Reason == nil, "step %d: disconnected early: %v", step, admin.Reason)
		r.w.Advance(2 * time.Second)
		r.until("the queue ends", func() bool { return admin.Reason != nil })
	}
	testutil.Equal(t, strings.Count(r.log.String(), "authentication not finished"), 5,
		"of 5 exchanges that were not finished have a line")
	q, _ := r.connectUnproven(0, adminArgs(testSub))
	r.send(q, authCommand(nvme.FabricsAuthSend, testHostSide(t).Negotiate(1)))
	q.HangUp() // while the message is processed, maybe
}

// TestAuthenticationRecords: the log has a line for each exchange of an admin queue, with any
// outcome, and for each exchange of an I/O queue that does not succeed.
func TestAuthenticationRecords(t *testing.T) {
	r, _ := authHarness(t, 1)
	lines := func(what, message string, want int) {
		t.Helper()
		if n := strings.Count(r.log.String(), `msg="`+message+`"`); n != want {
			t.Errorf("%s: %d lines %q, not %d\n%s", what, n, message, want, r.log)
		}
	}
	gone, _ := r.connectUnproven(0, adminArgs(testSub))
	gone.HangUp()
	lines("a host that does not begin", "authentication not finished", 1)
	gone, _ = r.connectUnproven(0, adminArgs(testSub))
	r.authSend(gone, testHostSide(t).Negotiate(1))
	gone.HangUp()
	lines("a host that hangs up", "authentication not finished", 2)

	admin, cntlid := r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(admin, testHostSide(t)))
	r.must(r.authenticate(admin, testHostSide(t)))
	lines("twice", "host has authenticated", 2)
	r.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	a := (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(1)
	io, _ := r.connectUnproven(0, a)
	r.must(r.authenticate(io, testHostSide(t)))
	same, _ := r.connectUnproven(0, (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(2))
	late, _ := r.connectUnproven(0, (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(2))
	r.must(r.authenticate(same, testHostSide(t)))
	lines("I/O queues", "host has authenticated", 2)
	r.must(r.authenticate(late, testHostSide(t)))
	r.until("the second queue 2 ends", func() bool { return late.Reason != nil })
	lines("an I/O queue that there is", "connect refused", 1)
	r.authSend(io, testHostSide(t).Negotiate(1))
	r.w.Advance(time.Duration(connectDeadline) + time.Second)
	r.until("the I/O queue ends", func() bool { return io.Reason != nil })
	lines("an I/O queue that stops", "authentication not finished", 3)
	admin.HangUp()
	same.HangUp()
	lines("the end of hosts that have authenticated", "authentication not finished", 3)
}

// TestAuthenticationKept: on a queue that serves nothing but concatenation an exchange has its
// record, and while a message is being processed its deadline does not look at the exchange.
func TestAuthenticationKept(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.Security = SecurityAuth | SecurityTLS
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
			end := occupy(r.target.auth)
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

// TestAuthenticationCommands: errors in the fields and the order of the commands themselves.
func TestAuthenticationCommands(t *testing.T) {
	r, _ := authHarness(t, 1)
	admin, _ := r.connectUnproven(0, adminArgs(testSub))
	for _, typ := range []nvme.FabricsType{nvme.FabricsAuthSend, nvme.FabricsAuthReceive} {
		for _, i := range []int{41, 42, 43} {
			c := authCommand(typ, make([]byte, 72))
			c.SQE[i]++
			r.status(admin, c, invalidField)
		}
		r.status(admin, authCommand(typ, nil), invalidField)
		r.status(admin, authCommand(typ, make([]byte, maxAuthReceive+1)), invalidField)
		c := authCommand(typ, make([]byte, 72))
		c.Data = c.Data[:71]
		r.status(admin, c, invalidLength)
		r.status(r.dial(0), authCommand(typ, make([]byte, 72)), sequenceError)
	}
	if m := r.authReceive(admin); m[1] != 0xF1 || m[7] != byte(auth.IncorrectMessage) ||
		!bytes.Equal(m[8:], make([]byte, len(m)-8)) {
		t.Errorf("nothing was to be read: % x", m[:16])
	}
	r.until("the queue ends", func() bool { return admin.Reason != nil })
}
