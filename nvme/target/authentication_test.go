package target

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
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

// reauthHarness has a host that has authenticated, and is to do so each hour.
type reauthHarness struct {
	*harness
	p     *auth.Policy
	admin *fabrictest.Queue
	io    []*fabrictest.Queue
}

const everyHour = time.Hour

func newReauthHarness(t *testing.T) *reauthHarness {
	r, p := authHarness(t, 2)
	x := &reauthHarness{harness: r, p: p}
	x.every(everyHour)
	x.connect(2)
	return x
}

// connect connects the host with I/O queues, one on each reactor, and authenticates all of them.
func (x *reauthHarness) connect(queues int) {
	x.t.Helper()
	admin, cntlid := x.connectUnproven(0, adminArgs(testSub))
	x.admin = admin
	x.must(x.authenticate(admin, testHostSide(x.t)))
	x.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	for i := range queues {
		a := (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(uint16(i + 1))
		q, _ := x.connectUnproven(i, a)
		x.must(x.authenticate(q, testHostSide(x.t)))
		x.io = append(x.io, q)
	}
}

// every sets the interval.
func (x *reauthHarness) every(d time.Duration) {
	p := *x.p
	p.Reauthenticate = d
	x.target.SetHostPolicy(testHost, &p)
}

// refuses sends a Read or Write of a block and reports whether it was refused.
func (x *reauthHarness) refuses(q int, op nvme.Opcode, flags nvme.RWFlags) bool {
	x.t.Helper()
	c := rw(op, 1, 0, 1, make([]byte, 512))
	c.SQE.RW().Set(0, 1, flags)
	x.do(x.io[q], c)
	switch st := c.CQE.Status() &^ nvme.More; st {
	case nvme.Success:
		return false
	case nvme.AuthenticationRequired:
		return true
	default:
		x.t.Fatalf("%v", st)
		return false
	}
}

// none expects that no command is refused.
func (x *reauthHarness) none(what string) {
	x.t.Helper()
	for q := range x.io {
		for _, op := range []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite} {
			testutil.True(x.t, !x.refuses(q, op, 0), "%s: opcode %#x of queue %d is refused", what,
				op, q+1)
		}
	}
}

func (x *reauthHarness) ended() bool { return x.admin.Reason != nil }

// TestReauthenticateNot: a host that does not do so is asked a few times and disconnected after a
// minute; one that is idle is not.
func TestReauthenticateNot(t *testing.T) {
	x := newReauthHarness(t)
	x.w.Advance(100 * everyHour)
	testutil.MustTrue(t, !x.ended(), "an idle host is disconnected")
	testutil.MustTrue(t, x.refuses(0, nvme.NVMRead, 0), "the host is not asked")
	x.none("asked")
	testutil.True(t, !x.sessionOf(x.io[0]).asking,
		"commands are looked at although nothing is to be refused")
	refused := 0
	for range 59 {
		x.w.Advance(time.Second)
		for q := range x.io {
			if x.refuses(q, nvme.NVMRead, 0) {
				refused++
			}
		}
	}
	testutil.True(t, refused == 5 && !x.ended(), "refused %d times more, ended %v", refused,
		x.admin.Reason)
	x.w.Advance(2 * time.Second)
	x.until("the controller ends", func() bool {
		return x.ended() && x.io[0].Reason != nil && x.io[1].Reason != nil
	})
	log := x.log.String()
	testutil.True(t, strings.Count(log, "authentication failed") == 1 && strings.Contains(log,
		"did not authenticate again within 1m0s"), "no line says why:\n%s", log)
	_, failed := x.target.Authentications()
	testutil.True(t, failed == 1, "%d failures", failed)
	from := x.admin.Info().Remote.Addr()
	for range 9 { // with another one a host has to wait
		x.target.shared.Auth.Failed(testHost, from)
	}
	testutil.True(t, !x.target.shared.Auth.Paused(testHost, from),
		"a failure delays the next Connect: the host has shown no wrong key")
}

// newGeneratedHarness also returns the information about a queue that uses a generated PSK.
func newGeneratedHarness(t *testing.T) (*reauthHarness, fabric.QueueInfo) {
	r, p := authHarness(t, 1)
	x := &reauthHarness{harness: r, p: p}
	x.every(everyHour)
	psk := &auth.TLSPSK{Identity: "generated", Secret: []byte{1}}
	r.target.shared.Auth.AddPSK(testHost, new(authn.Proof), psk, p.Keys[0])
	qi := info(nvme.TransportTCP)
	qi.TLS = &fabric.TLS{HostNQN: testHost, SubNQN: testSub, Generated: psk.Identity}
	return x, qi
}

// TestReauthenticateGenerated: a controller that was created with a generated PSK is asked, too.
func TestReauthenticateGenerated(t *testing.T) {
	x, qi := newGeneratedHarness(t)
	h := x.connectHostInfo(1, qi)
	x.admin, x.io = h.admin, h.io
	x.none("connected")
	x.w.Advance(everyHour + time.Second)
	testutil.True(t, x.refuses(0, nvme.NVMWrite, 0), "the host is not asked")
	x.must(x.authenticate(h.admin, testHostSide(t)))
	x.w.Advance(2 * time.Duration(authn.Limit))
	x.none("authenticated again")
	testutil.True(t, !x.ended(), "%v", h.admin.Reason)
}

// TestReauthenticateStalled: an exchange that cannot succeed does not hold up the end of a queue.
func TestReauthenticateStalled(t *testing.T) {
	x := newReauthHarness(t)
	x.w.Advance(everyHour + time.Second)
	testutil.MustTrue(t, x.refuses(0, nvme.NVMRead, 0), "the host is not asked")
	// There is nothing to read, and no room for the answer; nothing that follows counts.
	x.status(x.admin, authCommand(nvme.FabricsAuthReceive, make([]byte, 4)), invalidField)
	x.authSend(x.admin, testHostSide(t).Negotiate(1))
	x.w.Advance(time.Duration(connectDeadline) + time.Second)
	x.until("the queue ends", x.ended)
}

// TestReauthenticateOldPSK: a generated PSK proves for no longer than its exchange.
func TestReauthenticateOldPSK(t *testing.T) {
	x, qi := newGeneratedHarness(t)
	x.target.shared.Auth.Now = func() time.Time { return time.Now().Add(everyHour / 2) }
	h := x.connectHostInfo(1, qi)
	x.admin, x.io = h.admin, h.io
	x.w.Advance(everyHour/2 + time.Second)
	testutil.True(t, x.refuses(0, nvme.NVMRead, 0),
		"the interval begins when a controller is created")
	x.target.shared.Auth.Now = func() time.Time { return time.Now().Add(everyHour) }
	x.status(x.dialInfo(0, qi), adminArgs(testSub).command(), refusedStatus)
}

// TestReauthenticateSpread: controllers that were created together are due one after the other,
// within the last tenth of the interval.
func TestReauthenticateSpread(t *testing.T) {
	r, p := authHarness(t, 1)
	x := &reauthHarness{harness: r, p: p}
	x.every(everyHour)
	const controllers, steps = 64, 16
	for range controllers {
		q, _ := x.connectUnproven(0, adminArgs(testSub))
		x.must(x.authenticate(q, testHostSide(t)))
		x.ok(q, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	}
	due := func() (n int) {
		for _, s := range *x.target.table.Load() {
			s.each(func(c *controller) {
				if c.reauth.Asks() {
					n++
				}
			})
		}
		return n
	}
	x.w.Advance(everyHour * 9 / 10)
	n := due()
	testutil.True(t, n == 0, "%d controllers are due more than a tenth too early", n)
	before := 0
	for i := range steps {
		x.w.Advance(everyHour / 10 / steps)
		n := due()
		testutil.True(t, n-before == controllers/steps,
			"%d of %d controllers are due in part %d of %d", n-before, controllers, i, steps)
		before = n
	}
}

// TestReauthenticateWhatever: the controller of a host that does not authenticate again ends a
// minute after its first command, with any command sent all the time. Commands that move no data
// and change nothing do not count.
func TestReauthenticateWhatever(t *testing.T) {
	io := func(op nvme.Opcode) func(*reauthHarness) {
		return func(x *reauthHarness) {
			c, _ := gateSample(op)
			x.do(x.io[0], c)
		}
	}
	admin := func(make func() *fabrictest.Command) func(*reauthHarness) {
		return func(x *reauthHarness) { x.do(x.admin, make()) }
	}
	cc := func(v nvme.CC) *fabrictest.Command {
		return propertySetCommand(nvme.PropertyCC, uint64(v))
	}
	send := map[string]func(*reauthHarness){
		"fused pairs": func(x *reauthHarness) {
			pair := pairOf(0, make([]byte, 512), make([]byte, 512))
			x.must(x.io[0].Send(pair...))
			x.until("the pair completes", func() bool { return pair[0].Done && pair[1].Done })
		},
		"halves of pairs": func(x *reauthHarness) {
			x.send(x.io[0], fused(nvme.NVMCompare, 1, 0, make([]byte, 512)))
		},
		"read ahead": func(x *reauthHarness) { x.refuses(0, nvme.NVMRead, nvme.RWLimitedRetry) },
		"Identify": admin(func() *fabrictest.Command {
			return identifyCommand(nvme.CNSController, 0)
		}),
		"logs": admin(func() *fabrictest.Command { return logCommand(nvme.LogSMART, 512, 0) }),
		"Set Features": admin(func() *fabrictest.Command {
			return setFeature(nvme.FeatureArbitration, 1)
		}),
		"resets": func(x *reauthHarness) { // it is disabled whenever the host is looked at
			x.ok(x.admin, cc(nvme.CCLinux))
			x.ok(x.admin, identifyCommand(nvme.CNSController, 0))
			x.ok(x.admin, cc(nvme.CCLinux&^nvme.CCEnable))
		},
	}
	for op := range ioColumns {
		send[ioOps[op].name] = io(op)
	}
	idle := map[string]func(*reauthHarness){
		"nothing": func(*reauthHarness) {},
		"Keep Alive": admin(func() *fabrictest.Command {
			return command(nvme.AdminKeepAlive, 0, nil)
		}),
		"Property Get": admin(func() *fabrictest.Command {
			return propertyGetCommand(nvme.PropertyCSTS)
		}),
		"Abort": admin(func() *fabrictest.Command { return abortCommand(1, 0xFFFF) }),
	}
	for name, send := range send {
		t.Run(name, func(t *testing.T) {
			x := authenticated(t)
			x.w.Advance(2 * everyHour)
			for second := range authn.Limit / 1e9 {
				testutil.MustTrue(t, !x.ended(), "the controller has ended after %d s", second)
				send(x)
				x.w.Advance(time.Second)
			}
			testutil.True(t, x.ended(), "the controller has not ended")
		})
	}
	for name, send := range idle {
		t.Run(name, func(t *testing.T) {
			x := authenticated(t)
			x.w.Advance(2 * everyHour)
			for range 3 * authn.Limit / 1e9 {
				send(x)
				x.w.Advance(time.Second)
			}
			testutil.True(t, !x.ended(), "an idle host is disconnected: %v", x.admin.Reason)
		})
	}
}

// TestReauthenticateBusy: a queue in use does not end because the target is late with a message,
// however late that is. When it is not, the host has its time, and no more.
func TestReauthenticateBusy(t *testing.T) {
	x := newReauthHarness(t)
	x.w.Advance(everyHour)
	testutil.MustTrue(t, x.refuses(0, nvme.NVMRead, 0), "the host is not asked")
	release := sync.OnceFunc(occupy(x.target.shared.Auth))
	defer release()
	h := testHostSide(t)
	negotiate := authCommand(nvme.FabricsAuthSend, h.Negotiate(7))
	x.send(x.admin, negotiate)
	testutil.MustTrue(t, x.sessionOf(x.admin).auth.Busy(), "no message waits: nothing is tested")
	for range 2 * authn.Limit / connectDeadline {
		x.w.Advance(time.Duration(connectDeadline))
		x.none("the message waits")
	}
	testutil.MustTrue(t, !x.ended() && !negotiate.Done,
		"the target is late, and the host is disconnected: %v", x.admin.Reason)
	release()
	x.until("the message is processed", func() bool { return negotiate.Done })
	m, err := h.Challenged(x.authReceive(x.admin))
	x.must(err)
	x.authSend(x.admin, m)
	m, err = h.Succeeded(x.authReceive(x.admin))
	x.must(err)
	x.authSend(x.admin, m)
	x.w.Advance(2 * time.Duration(authn.Limit))
	x.none("authenticated again")

	again := sync.OnceFunc(occupy(x.target.shared.Auth))
	defer again()
	negotiate = authCommand(nvme.FabricsAuthSend, testHostSide(t).Negotiate(8))
	x.send(x.admin, negotiate)
	x.w.Advance(time.Duration(connectDeadline) * 5 / 2)
	again()
	x.until("the message is processed", func() bool { return negotiate.Done })
	x.w.Advance(time.Duration(connectDeadline))
	x.until("a host that stops is disconnected", x.ended)
}

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
			testutil.True(t, bytes.Equal(answer, unknown) && q.Reason == nil,
				"queue %d, %s for %q: % x, of an unknown name % x; %v", qid, c.sub, c.host, answer,
				unknown, q.Reason)
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
