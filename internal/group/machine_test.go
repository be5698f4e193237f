package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// pair is the world of the model, without its faults. A tick is a second, and a lease lasts 3 s.
type pair struct {
	*testing.T
	x model
	w *world
}

func newPair(t *testing.T) *pair {
	p := &pair{T: t, w: &world{record: &Record{Format: format}, path: -1}}
	for g := range p.w.gateways {
		cfg := settings
		cfg.Gateway, cfg.Home, cfg.Prefers = names[g], names[g], g == 0
		cfg.MoveAfter, cfg.Reconnect = 10, 10
		p.w.gateways[g] = gateway{m: *New(cfg)}
	}
	return p
}

// pass lets ticks pass, in which the gateways with these numbers run.
func (p *pair) pass(ticks int, running ...int) {
	for range ticks {
		for range 2 { // an operation may follow from another gateway's
			for _, g := range running {
				p.x.poll(p.w, g)
				p.x.finish(p.w, g)
			}
		}
		p.w.now++
	}
}

func (p *pair) machine(g int) *Machine { return &p.w.gateways[g].m }

// want fails the test unless the gateways have this access.
func (p *pair) want(when string, a, b Access) {
	p.Helper()
	for g, want := range []Access{a, b} {
		m := p.machine(g)
		testutil.Equal(p, m.Access(p.w.clock(g)), want, "%s: access at %s (%+v)", when, names[g],
			m.Status(p.w.clock(g)))
	}
}

// takeover lets the second gateway run until it serves the group.
func (p *pair) takeover() {
	p.Helper()
	for ticks := 0; p.machine(1).Access(p.w.clock(1)) != Optimized; ticks++ {
		testutil.MustTrue(p, ticks < 9, "no takeover")
		p.pass(1, 1)
	}
}

func TestPrefers(t *testing.T) {
	p := newPair(t)
	p.pass(3, 1)
	p.want("at first", Inaccessible, Inaccessible)
	p.pass(3, 0, 1)
	p.want("at the start of the preferred one", Optimized, Inaccessible)
	p = newPair(t)
	p.pass(9, 1)
	p.want("without the preferred one", Inaccessible, Optimized)
}

// TestKilled: the other gateway takes over when the lease is over, and has the fence as a duty
// until the killed one is back.
func TestKilled(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	killed := p.machine(0).me.ID
	p.pass(2, 1)
	p.want("before the end of the lease", Inaccessible, Inaccessible)
	p.pass(3, 1)
	p.want("after it", Inaccessible, Optimized)
	p.x.poll(p.w, 1)
	fenced := p.machine(1).Status(p.w.clock(1)).Fenced
	testutil.True(t, len(fenced) == 1 && fenced[0].ID == killed, "fenced: %+v", fenced)
	testutil.True(t, p.w.isFenced(killed), "no fence")
	testutil.True(t, p.w.record.instance(killed) == nil, "it could be the heir")
	p.w.gateways[0] = gateway{m: *New(p.machine(0).cfg), births: 1}
	p.pass(4, 0, 1)
	testutil.Equal(t, len(p.w.record.Fenced), 0, "fences of ended instances")
	p.want("when it is back", Inaccessible, Optimized)
}

// TestFenceByHand: a gateway that is asked to fences the holder before its lease is over, and takes
// the group. If the group has moved meanwhile, nobody is fenced.
func TestFenceByHand(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	holder := p.machine(0).me.ID
	evict := func(name string) {
		p.machine(1).Fence(p.w.clock(1), name)
		p.x.poll(p.w, 1)
		p.x.finish(p.w, 1)
	}
	p.machine(1).holdOff = 1 << 30 // it has just given the group away
	evict("b")
	testutil.Equal(t, len(p.w.fences), 0, "fences of a gateway that holds nothing")
	evict("a")
	testutil.True(t, p.w.isFenced(holder) && p.w.now == 3, "no fence within the lease")
	p.takeover()
	testutil.True(t, len(p.w.record.Fenced) == 1 && p.machine(1).evict == "", "%+v", p.w.record)
	p.pass(3, 0, 1)
	p.want("when it has seen that", Inaccessible, Optimized)
}

// TestRestarted: a gateway that starts again does not wait for its own lease.
func TestRestarted(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	killed := p.machine(0).me.ID
	p.w.gateways[0] = gateway{m: *New(p.machine(0).cfg), births: 1}
	p.pass(2, 0, 1)
	p.want("after a restart", Optimized, Inaccessible)
	testutil.True(t, p.w.isFenced(killed), "no fence")
}

// TestDrain: a group goes to the other gateway at once, without a fence, and stays there.
func TestDrain(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	p.w.writes = []write{{gateway: 0}} // I/O that ends later
	p.machine(0).Drain(p.w.clock(0), true)
	p.x.poll(p.w, 0)
	p.want("while I/O ends", Change, Inaccessible)
	p.w.writes = nil
	p.pass(3, 0, 1)
	p.want("afterwards", Inaccessible, Optimized)
	testutil.Equal(t, len(p.w.fences), 0, "fences")
	p.pass(20, 0, 1)
	p.want("later", Inaccessible, Optimized)
	p.machine(0).Drain(p.w.clock(0), false)
	p.machine(1).Drain(p.w.clock(1), true)
	p.pass(3, 0, 1)
	p.want("and back", Optimized, Inaccessible)
}

// TestDrainedHeir: a gateway that does not take the group is not its heir.
func TestDrainedHeir(t *testing.T) {
	for _, drained := range []bool{false, true} {
		p := newPair(t)
		p.machine(1).Describe(0, (&Facts{Drained: drained}).bytes())
		p.pass(3, 0, 1)
		b := p.machine(1).me.ID
		for _, claim := range []string{b, "", "gone"} {
			r := *p.w.record
			r.Claim = claim
			p.w.record, p.w.version = &r, p.w.version+1
			p.machine(0).Drain(p.w.clock(0), true)
			p.pass(3, 0)
			testutil.True(t, p.w.record.Holder == nil, "a has not signed off: %+v", p.w.record)
			testutil.Equal(t, p.w.record.Claim, map[bool]string{false: b}[drained],
				"drained %v, claim of %q: the heir", drained, claim)
			p.machine(0).Drain(p.w.clock(0), false)
			p.pass(9, 0)
		}
	}
}

// TestDeadHeir: a group goes to a gateway that is present, not to one that has died while it
// waited, and no claim of a dead one moves it. If nobody can tell, all count as present.
func TestDeadHeir(t *testing.T) {
	for _, tc := range []struct {
		alone bool // b is paused
		moves bool // z has asked for the group, and a would give it
		heir  bool // a has one
		claim string
	}{
		{heir: true, claim: "b0"}, {alone: true, claim: "z"}, {heir: true, moves: true},
	} {
		p := newPair(t)
		p.machine(0).Hosts(0, true)
		p.pass(3, 0, 1)
		p.w.gateways[1].paused = tc.alone
		r := *p.w.record
		r.Instances = append(r.Instances, Instance{ID: "z", Gateway: "z", Hosts: true})
		r.Claim = "z"
		p.w.record, p.w.version = &r, p.w.version+1
		m := p.machine(0)
		m.Ask(p.w.clock(0))
		m.Balance(p.w.clock(0), false, map[bool]string{true: "z"}[tc.moves])
		p.pass(1, 0)
		testutil.True(t, !m.asking && m.HasHeir() == tc.heir, "%+v: an heir: %v", tc, m.HasHeir())
		if !tc.moves {
			m.Drain(p.w.clock(0), true)
		}
		p.pass(3, 0)
		testutil.Equal(t, p.w.record.holds(m.me.ID), tc.moves, "%+v: a has the group", tc)
		testutil.Equal(t, p.w.record.Claim, tc.claim, "%+v: the heir", tc)
	}
	m := New(settings)
	m.Ask(0)
	testutil.True(t, !m.asking && !m.HasHeir(), "a gateway without a connection")
	m.me, m.record = &Instance{ID: "a0"}, &Record{Instances: []Instance{{ID: "b0"}}}
	m.Done(0, &Result{Op: OpAsk, Err: errUnknown})
	testutil.True(t, m.HasHeir() && m.failure == nil, "nobody can tell: %v", m.failure)
}

// TestClaimOfDead: a claim of a gateway that is not present is removed, although the question
// notifies the holder as well, and reads of the record are slow.
func TestClaimOfDead(t *testing.T) {
	p := newPair(t)
	p.machine(0).cfg.Lease = 1000
	p.machine(0).Hosts(0, true)
	p.pass(3, 0, 1)
	r := *p.w.record
	r.Instances, r.Claim = append(r.Instances, Instance{ID: "z", Gateway: "z", Hosts: true}), "z"
	p.w.record, p.w.version = &r, p.w.version+1
	p.machine(0).Balance(p.w.clock(0), false, "z")
	asked := 0
	for gw := &p.w.gateways[0]; p.w.record.Claim != ""; p.w.now++ {
		for p.x.poll(p.w, 0); len(gw.ops) > 0; p.x.deliver(p.w, 0, 0, false) {
			switch p.x.apply(p.w, &gw.ops[0], 0); gw.ops[0].action.Op {
			case OpAsk:
				asked++
				testutil.MustTrue(t, asked < 5, "it asks again and again")
				p.machine(0).Notified(p.w.clock(0))
			case OpRead:
				p.w.now += int(settings.Poll)
			}
		}
	}
	testutil.True(t, p.w.record.holds(p.machine(0).me.ID), "it was given away")
}

// TestSignOff: a drained gateway signs off before it releases the lease, or it would be fenced. It
// takes the group again as soon as it may, also if that comes before the release. It asks once who
// is present, which notifies itself as well, also if reads are slow.
func TestSignOff(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	p.machine(0).Drain(p.w.clock(0), true)
	p.x.poll(p.w, 0)
	var order []Op
	for gw := &p.w.gateways[0]; len(gw.ops) > 0; {
		op := gw.ops[0].action.Op
		order = append(order, op)
		switch p.x.apply(p.w, &gw.ops[0], 0); {
		case op == OpWrite:
			p.machine(0).Drain(p.w.clock(0), false)
		case op == OpAsk:
			p.machine(0).Notified(p.w.clock(0))
			testutil.MustTrue(t, len(order) < 20, "%v", order)
		case op == OpRead && !slices.Contains(order, OpWrite):
			p.w.now += int(settings.Poll)
		}
		p.x.deliver(p.w, 0, 0, false)
	}
	testutil.Equal(t, p.machine(0).holdOff, p.w.clock(0), "when it may take the group")
	order = slices.DeleteFunc(order, func(op Op) bool { return op == OpRead || op == OpRenew })
	testutil.Equal(t, fmt.Sprint(order), fmt.Sprint([]Op{OpClose, OpAsk, OpWrite, OpRelease}), "")
}

// TestHostsElsewhere: a group moves to the gateway that its hosts are at after 10 s.
func TestHostsElsewhere(t *testing.T) {
	p := newPair(t)
	p.machine(0).Hosts(0, true)
	p.machine(1).Hosts(0, true)
	p.pass(30, 0, 1)
	p.want("with hosts at both", Optimized, Inaccessible)
	p.machine(0).Hosts(p.w.clock(0), false)
	p.pass(8, 0, 1)
	p.machine(0).Hosts(p.w.clock(0), true)
	p.pass(20, 0, 1)
	p.want("with hosts that come back", Optimized, Inaccessible)
	p.machine(0).Hosts(p.w.clock(0), false)
	p.pass(9, 0, 1)
	p.want("before 10 s", Optimized, Inaccessible)
	p.pass(10, 0, 1)
	p.want("after them", Inaccessible, Optimized)
	testutil.Equal(t, len(p.w.fences), 0, "fences")
	p.machine(1).Hosts(p.w.clock(1), false)
	p.pass(60, 0, 1)
	p.want("without any hosts", Inaccessible, Optimized)
	reason := p.machine(1).reason
	p.machine(0).Hosts(p.w.clock(0), true)
	p.machine(0).holdOff = p.w.clock(0) + 60
	p.pass(50, 0, 1)
	p.want("with hosts at one that would not take it", Inaccessible, Optimized)
	testutil.Equal(t, p.machine(1).reason, reason, "why b has it")
}

// TestBalanced: a group moves to a gateway that asks for it, without a fence, if the holder agrees.
// The status of both has the reason.
func TestBalanced(t *testing.T) {
	p := newPair(t)
	for g := range p.w.gateways {
		p.machine(g).Hosts(0, true)
	}
	p.pass(3, 0, 1)
	p.machine(1).Balance(p.w.clock(1), true, "")
	p.pass(30, 0, 1)
	p.want("without the consent of the holder", Optimized, Inaccessible)
	p.machine(0).Balance(p.w.clock(0), false, "x")
	p.pass(30, 0, 1)
	p.want("with that for another one", Optimized, Inaccessible)
	p.machine(1).Balance(p.w.clock(1), false, "")
	p.pass(2, 0, 1) // a removes the last claim
	p.machine(0).Balance(p.w.clock(0), false, p.machine(1).me.ID)
	p.pass(30, 0, 1)
	p.want("of a gateway that does not ask", Optimized, Inaccessible)
	p.machine(1).Balance(p.w.clock(1), true, "")
	p.x.poll(p.w, 1)
	p.x.finish(p.w, 1)
	p.pass(1, 0)
	p.machine(1).Balance(p.w.clock(1), false, "") // nobody has the group
	p.pass(8, 0, 1)
	p.want("with it", Inaccessible, Optimized)
	testutil.Equal(t, len(p.w.fences), 0, "fences")
	for g, want := range []string{
		"gateway b serves fewer groups", "this gateway served fewer groups",
	} {
		testutil.Equal(t, p.machine(g).Status(p.w.clock(g)).Reason, want, "at %s", names[g])
	}
	p.pass(30, 0, 1)
	p.want("later", Inaccessible, Optimized)
}

// TestEarlyClaim: a group moves soon to a gateway that has started since the holder last looked for
// others, and that asks for the group before the holder agrees.
func TestEarlyClaim(t *testing.T) {
	p := newPair(t)
	a, b := p.machine(0), p.machine(1)
	a.cfg.Lease = 1000
	a.Hosts(0, true)
	b.Hosts(0, true)
	p.pass(3, 0)
	a.Ask(p.w.clock(0))
	p.pass(1, 0)
	p.pass(1, 0, 1)
	b.Balance(p.w.clock(1), true, "")
	p.pass(1, 1)
	p.pass(2, 0)
	testutil.True(t, b.asked && p.w.record.Claim == "", "%v, %+v", b.asked, p.w.record)
	a.Balance(p.w.clock(0), false, b.me.ID)
	p.pass(5, 0, 1)
	p.want("soon", Inaccessible, Optimized)
}

// TestReasons: the status has the reason why a group was taken.
func TestReasons(t *testing.T) {
	m := New(Config{})
	m.me = &Instance{ID: "a1", Gateway: "a"}
	for _, tc := range []struct {
		record Record
		want   string
	}{
		{Record{}, "no gateway had it"},
		{Record{Claim: "a1"}, "another gateway gave it away"},
		{Record{Holder: &Instance{ID: "a0", Gateway: "a"}}, "this gateway had it before"},
		{Record{Holder: &Instance{ID: "b0", Gateway: "b"}}, "the lease of gateway b was over"},
	} {
		m.record = &tc.record
		testutil.Equal(t, m.whyTaken(), tc.want, "%+v", tc.record)
	}
	m.evict = "b0"
	testutil.Equal(t, m.whyTaken(), "gateway b is fenced by hand", "")
}

// TestFencedByStranger: a gateway that was fenced connects again at most once in 10 s. It counts
// fences that neither it nor another gateway has made.
func TestFencedByStranger(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0)
	for births := 1; births <= 3; births++ {
		testutil.Equal(t, p.w.gateways[0].births, births, "instances")
		p.w.fences = []fenced{{p.machine(0).me.ID, 1 << 30}}
		p.pass(1, 0)
		p.want("fenced", Inaccessible, Inaccessible)
		p.pass(12, 0)
		testutil.Equal(t, p.machine(0).Status(0).Strangers, births, "fences by strangers")
	}
	p.want("connected again", Optimized, Inaccessible)
	p.machine(1).Fence(p.w.clock(1), "a")
	p.takeover()
	p.pass(20, 0, 1)
	testutil.Equal(t, p.machine(0).Status(0).Strangers, 3, "with one by a gateway")
	m := p.machine(1)
	m.refused = true
	m.Done(p.w.clock(1), &Result{Op: OpConnect, Instance: m.me, FencedItself: true})
	testutil.True(t, !m.suspect, "its own fence counts")
}

// TestNoStranger: a fence by a gateway that stops before it has become the holder, or that forgets
// the other one, is not one by a stranger.
func TestNoStranger(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		p := newPair(t)
		p.pass(3, 0, 1)
		old := p.machine(0).me.ID
		if forgets {
			p.takeover()
			p.machine(1).Forget(p.w.clock(1), "a")
			p.pass(2, 1)
			testutil.Equal(t, len(p.w.record.Fenced), 0, "former holders")
		}
		for !p.w.isFenced(old) {
			p.w.now++
			p.x.poll(p.w, 1)
			for gw := &p.w.gateways[1]; len(gw.ops) > 0 && !p.w.isFenced(old); {
				p.x.apply(p.w, &gw.ops[0], 1)
				p.x.deliver(p.w, 1, 0, false)
			}
		}
		p.machine(1).Drain(p.w.clock(1), true)
		p.x.finish(p.w, 1)
		testutil.Equal(t, p.w.record.Taker, "", "who takes the group")
		p.w.fences = []fenced{{old, 1 << 30}}
		p.pass(20, 0, 1)
		testutil.True(t, p.machine(0).me.ID != old, "a has not noticed the fence")
		testutil.Equal(t, p.machine(0).Status(0).Strangers, 0, "forgets %v: strangers", forgets)
	}
}

// TestShortFence: a fence that the storage cannot make longer is renewed at its end, before which
// its instance is not forgotten.
func TestShortFence(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	p.pass(10, 1)
	m := p.machine(1)
	m.cfg.FenceCheck = 10
	for _, tc := range []struct {
		left, renewed time.Duration
		lasting       bool
	}{{5, 5, false}, {0, 0, false}, {10, 10, true}, {1000, 10, true}} {
		m.Done(p.w.clock(1), &Result{Op: OpFence, Left: tc.left})
		testutil.Equal(t, m.fenceAt-m.sentAt, tc.renewed, "renewal of a fence of %d", tc.left)
		testutil.Equal(t, m.lasting, tc.lasting, "a fence of %d counts as lasting", tc.left)
	}
}

// TestNotTaken: groups that this gateway must not take stay where they are, with the reason.
func TestNotTaken(t *testing.T) {
	old := &Instance{ID: "x", Gateway: "x"}
	many := slices.Repeat([]Instance{{ID: "y", Gateway: "y"}}, maxInstances)
	for _, tc := range []struct {
		record *Record
		want   string
	}{
		{&Record{Holder: old}, "no addresses"},
		{&Record{Fenced: many}, "too many gateways"},
		{&Record{Instances: many}, "full"},
	} {
		p := newPair(t)
		p.w.record = tc.record
		p.pass(40, 0)
		p.want(tc.want, Inaccessible, Inaccessible)
		s := p.machine(0).Status(p.w.clock(0))
		testutil.True(t, strings.Contains(s.Problem, tc.want), "%q, want %q", s.Problem, tc.want)
	}
}

// TestNobodyOpens: a group that no gateway can open is passed on less and less often. It is taken
// when it can be opened, or at once after Drain(false).
func TestNobodyOpens(t *testing.T) {
	p := newPair(t)
	p.x.noOpen = errors.New("no such image")
	const pause = 3 << maxFailures // of a gateway
	p.pass(20*pause, 0, 1)
	testutil.True(t, p.x.opens > 20 && p.x.opens < 60, "%d attempts", p.x.opens)
	testutil.Equal(t, p.machine(0).Status(p.w.clock(0)).Problem, "no such image", "the problem")
	testutil.True(t, p.w.record.Holder == nil, "a holder without images")
	p.x.noOpen = nil
	p.machine(1).Drain(p.w.clock(1), true)
	p.machine(0).Drain(p.w.clock(0), false)
	p.pass(6, 0, 1)
	p.want("when it was asked for", Optimized, Inaccessible)
	p.machine(0).Done(p.w.clock(0), &Result{Op: OpOpen, Err: ErrFenced})
	testutil.Equal(t, p.machine(0).failures, 0, "failures")
}

// TestOneName: of two gateways with the same name, the one that was there first takes no group.
func TestOneName(t *testing.T) {
	p := newPair(t)
	p.machine(1).cfg.Gateway = "a"
	p.pass(3, 0)
	p.w.record = &Record{Instances: []Instance{{ID: "z", Gateway: "a", Home: "z"}}}
	p.w.version++
	p.pass(1, 0)
	p.pass(20, 0)
	s := p.machine(0).Status(p.w.clock(0))
	testutil.True(t, strings.Contains(s.Problem, "has the name a"), "%+v", s)
	p.want("with the name of another", Inaccessible, Inaccessible)
}

// TestForget: a gateway that never comes back leaves the record when that is asked for: one that
// waited at once, a former holder when its fence lasts, and the holder not at all. One that runs
// takes part again, in spite of conflicts of writes.
func TestForget(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	forget := func(g int, name string) {
		p.machine(g).Forget(p.w.clock(g), name)
		p.pass(1, g)
		testutil.Equal(t, p.machine(g).forget, "", "the gateway that is to be forgotten")
	}
	there := func(name string) bool {
		return slices.ContainsFunc(p.w.record.Instances, func(i Instance) bool {
			return i.Gateway == name
		})
	}
	forget(0, "a")
	testutil.True(t, there("a") && there("b"), "%+v", p.w.record)
	forget(0, "b")
	testutil.True(t, there("a") && !there("b"), "%+v", p.w.record)
	p.pass(3, 0, 1)
	testutil.True(t, there("b"), "a gateway that runs stays out")
	p.want("afterwards", Optimized, Inaccessible)

	p.takeover()
	testutil.Equal(t, len(p.w.record.Fenced), 1, "former holders")
	forget(1, "a")
	p.pass(3, 1)
	testutil.Equal(t, len(p.w.record.Fenced), 0, "former holders")
	m := p.machine(1)
	for err, want := range map[error]string{ErrConflict: "x", nil: ""} {
		m.forget, m.forgetting = "x", true
		m.Done(p.w.clock(1), &Result{Op: OpWrite, Err: err})
		testutil.Equal(t, m.forget, want, "after a write with the error %v", err)
	}
}

// TestForgetFails: a gateway that cannot be forgotten in time is not forgotten later, and of two
// calls none takes the end of the other one for its own.
func TestForgetFails(t *testing.T) {
	g := Start(Default("a", "", time.Second), func() (Engine, error) { return nil, ErrLost }, nil,
		slog.New(slog.DiscardHandler))
	defer g.Stop(testutil.Context(t))
	is := func(gateway string) {
		testutil.Until(t, "it forgets "+gateway, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.machine.forget == gateway
		})
	}
	call := func(gateway string) (context.CancelFunc, chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Forget(ctx, gateway) }()
		return cancel, ended
	}
	cancelB, b := call("b")
	is("b")
	cancelC, c := call("c")
	cancelB()
	testutil.Fails(t, testutil.Receive(t, "the first end", b), "cannot be changed now", "")
	is("c")
	cancelC()
	testutil.Fails(t, testutil.Receive(t, "the second end", c), "cannot be changed now", "")
	is("")
}

// TestCopied: two gateways with the same name and state directory do not fence each other for ever.
func TestCopied(t *testing.T) {
	p := newPair(t)
	p.machine(1).cfg = p.machine(0).cfg
	p.pass(200, 0, 1)
	births := p.w.gateways[0].births + p.w.gateways[1].births
	testutil.True(t, births <= 3, "%d instances", births)
}

// TestAllFenced: a takeover checks the fences of all former holders.
func TestAllFenced(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	r := *p.w.record
	r.Fenced = []Instance{{ID: "y", Gateway: "y", Addrs: []string{"y"}}}
	p.w.record = &r
	p.takeover()
	testutil.True(t, p.w.isFenced("y") && p.w.isFenced("a0"), "fences: %+v", p.w.fences)
}

// TestEarlierFences: fences from before another instance was the holder do not count.
func TestEarlierFences(t *testing.T) {
	for _, ph := range []phase{standby, taking} {
		p := newPair(t)
		p.pass(3, 1)
		p.w.record.Fenced = []Instance{{ID: "y", Gateway: "y", Addrs: []string{"y"}, Ended: true}}
		m := p.machine(1)
		m.phase, m.duty = ph, duty{fenced: "x", fenceAt: 1 << 30, lasting: true}
		if ph == standby { // with an intent that was recorded late
			p.w.record.Taker = m.me.ID
		}
		p.takeover()
		testutil.True(t, p.w.isFenced("y"), "%s: the fence of a former holder was not checked",
			phases[ph])
	}
}

// TestForgotten: an instance that has ended is forgotten when its fence lasts.
func TestForgotten(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	p.pass(10, 1)
	r, m := *p.w.record, p.machine(1)
	r.Fenced = []Instance{{ID: "y", Gateway: "y", Addrs: []string{"y"}, Ended: true}}
	p.w.record = &r
	p.w.version++
	for _, lasting := range []bool{false, true} {
		m.lasting, m.fenceAt = lasting, 1<<30
		p.pass(5, 1)
		testutil.Equal(t, len(p.w.record.Fenced) == 0, lasting, "forgotten")
	}
	p.want("all the time", Inaccessible, Optimized)
}

// drive lets a machine run for a time on a storage system in which it holds the group. fence
// carries a fence out.
func drive(t *testing.T, m *Machine, d time.Duration, fence func(time.Duration) *Result) {
	t.Helper()
	m.me = &Instance{ID: "b", Gateway: "b"}
	m.phase, m.held, m.open, m.opened, m.until = serving, true, true, true, d
	r := &Record{
		Holder: m.me, Instances: []Instance{*m.me}, Fenced: []Instance{{ID: "a"}}, Format: format,
	}
	steps := 0
	for tick := range d / (10 * time.Millisecond) {
		now := tick * 10 * time.Millisecond
		for actions := m.Poll(now); len(actions) > 0; actions = m.Poll(now) {
			steps++
			testutil.MustTrue(t, steps < 1000, "a thousand steps in %v", now)
			for _, a := range actions {
				res := &Result{Record: r, Version: 1, Lessee: "b"}
				if a.Op == OpFence {
					res = fence(now)
				}
				res.Op = a.Op
				m.Done(now, res)
			}
		}
	}
}

// TestEndOfFence: a fence is checked at its end, and every half a second while the storage has it
// beyond that.
func TestEndOfFence(t *testing.T) {
	var at []time.Duration
	drive(t, New(Default("b", "b", 60*time.Second)), 6*time.Second,
		func(now time.Duration) *Result {
			at = append(at, now)
			return &Result{Left: max(3300*time.Millisecond-now, 0)}
		})
	testutil.MustEqual(t, len(at), 7, "checks at %v", at)
	testutil.True(t, at[1] == 3300*time.Millisecond && at[2] == 3800*time.Millisecond, "%v", at)
}

// TestProblem: an operation that fails again and again is one problem.
func TestProblem(t *testing.T) {
	m := New(Default("b", "b", 6*time.Second))
	problems := map[string]int{}
	before := ""
	drive(t, m, 6*time.Second, func(now time.Duration) *Result {
		if s := m.Status(now).Problem; s != before {
			problems[s]++
			before = s
		}
		return &Result{Err: errors.New("no right to fence")}
	})
	testutil.True(t, len(problems) == 1 && problems["no right to fence"] == 1, "%v", problems)
}

// TestUnknownWrite: a write that was carried out, but not answered in time, is not a lasting
// problem.
func TestUnknownWrite(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	m := p.machine(1)
	m.Done(p.w.clock(1), &Result{Op: OpWrite, Err: errors.New("no answer")})
	testutil.Equal(t, m.Status(p.w.clock(1)).Problem, "no answer", "the problem")
	p.pass(5, 0, 1)
	testutil.Equal(t, m.Status(p.w.clock(1)).Problem, "", "the problem later")
}

// TestParseRecord: a record is read as it was written. If a bit has changed or the end is missing,
// it is refused.
func TestParseRecord(t *testing.T) {
	r := &Record{Format: format, Holder: &Instance{ID: "a", Addrs: []string{"1.2.3.4:0/5"}}}
	data := testutil.Value(r.Bytes())(t)
	long := &Record{Format: format, Taker: strings.Repeat("x", MaxRecord)}
	testutil.Fails(t, testutil.Err(long.Bytes()), "bytes", "a record that cannot be read")
	testutil.Equal(t, fmt.Sprintf("%+v %+v", Record{}, Instance{}), "{Format:0 Instances:[] "+
		"Holder:<nil> Taker: Claim: Fenced:[] Promised:[]} {ID: Gateway: Home: Addrs:[] "+
		"Hosts:false Facts:[] Ended:false}",
		"a change needs another format, since other versions refuse it")
	got := testutil.Value(ParseRecord(data, 1))(t)
	testutil.Equal(t, fmt.Sprint(*got.Holder), fmt.Sprint(*r.Holder), "the holder")
	testutil.Must(t, testutil.Err(ParseRecord(nil, 0)))
	for bit := range 8 * len(data) {
		bad := bytes.Clone(data)
		bad[bit/8] ^= 1 << (bit % 8)
		_, flipped := ParseRecord(bad, 1)
		_, cut := ParseRecord(data[:bit/8], 1)
		testutil.True(t, flipped != nil && cut != nil, "bit %d of %q", bit, data)
	}
	many := testutil.Value((&Record{
		Format: format, Fenced: make([]Instance, maxInstances+1),
	}).Bytes())(t)
	for text, want := range map[string]string{
		`{"format": 5}`: "format 5: this version knows only 2 to 4",
		"{":             "damaged", "": "damaged", "null": "format 0", "{}": "format 0", `{"format": 1}`: "format 1", string(many): "more than 64",
		strings.Repeat(" ", MaxRecord+1): "bytes",
	} {
		testutil.Fails(t, testutil.Err(ParseRecord([]byte(text), 1)), want, "%.20q", text)
	}
}

// TestReserve: only the gateway that holds the group makes it one with reservations, which programs
// that do not know them refuse, and lists their objects. A takeover does not change that. The list
// has a bound.
func TestReserve(t *testing.T) {
	p := newPair(t)
	p.pass(3, 0, 1)
	p.machine(1).Reserve(p.w.clock(1), "")
	p.pass(3, 0, 1)
	testutil.Equal(t, p.w.record.Format, format, "the format, asked for by the other one")
	for _, name := range []string{"", "one", "two", "one"} {
		p.machine(0).Reserve(p.w.clock(0), name)
	}
	testutil.True(t, !p.machine(0).Reserved(""), "it is done before it has begun")
	p.x.poll(p.w, 0)
	p.x.finish(p.w, 0)
	for range 3 {
		if p.machine(0).Reserved("two") {
			testutil.Equal(t, p.w.record.Format, withPromises, "the format")
		}
		p.x.poll(p.w, 0)
		p.x.finish(p.w, 0)
	}
	testutil.True(t, p.machine(0).Reserved("two"), "it is not done")
	data := testutil.Value(p.w.record.Bytes())(t)
	testutil.Must(t, testutil.Err(ParseRecord(data, 1)))
	last := fmt.Sprint(maxPromised - 1)
	p.machine(0).Reserve(p.w.clock(0), last) // which the other one does, too
	p.takeover()
	testutil.Equal(t, fmt.Sprint(p.w.record.Format, p.w.record.Promised), "4 [one two]",
		"the record after a takeover")
	testutil.True(t, p.machine(1).Reserved("one") && !p.machine(1).Reserved("three"), "the list")
	for n := range maxPromised {
		p.machine(1).Reserve(p.w.clock(1), fmt.Sprint(n))
	}
	p.pass(3, 1)
	testutil.Must(t, testutil.Err(ParseRecord(testutil.Value(p.w.record.Bytes())(t), 1)))
	testutil.True(t, p.machine(1).Reserved(last) && !p.machine(1).Reserved("one"), "the bound")
	p.pass(6, 0, 1)
	testutil.True(t, p.machine(0).Reserved(last), "the former holder does not see the list")
}

// TestLeaseTime: the lease counts from the time before the renewal was sent, and ends after two
// thirds of it.
func TestLeaseTime(t *testing.T) {
	m := New(Default("a", "a", 6*time.Second))
	m.held, m.phase = true, serving
	m.until = time.Second
	m.Poll(0) // sends the renewal
	m.Done(900*time.Millisecond, &Result{Op: OpRenew})
	testutil.Equal(t, m.until, 4*time.Second, "the end")
	testutil.Equal(t, m.Access(m.until-1), Optimized, "before it")
	testutil.Equal(t, m.Access(m.until), Inaccessible, "at it")
}
