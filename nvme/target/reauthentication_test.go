package target

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
)

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
				if c.again.Asks() {
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
