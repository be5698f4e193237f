package admission

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// The numbers of a model with Limits{512, 200, 1 MiB}, by kind of address and class: for all
// addresses and for one, the connections and the divisor of the memory.
var modelLimits = [2][2][2]struct {
	connections int
	part        int64
}{
	{{{128, 4}, {32, 16}}, {{32, 16}, {16, 64}}},
	{{{256, 2}, {128, 4}}, {{64, 8}, {32, 16}}},
}

// modelConn is a connection of a model that does everything by scanning all connections.
type modelConn struct {
	e        *Conn
	host     int
	class    class
	memory   int64
	since    int64 // on the clock of the model
	all, own int   // its place in the order of the two budgets
	left     bool
	evicted  bool
	by       int  // the host of the newer connection
	told     bool // its evict function was called
	held     bool
	shown    bool
	claim    fabric.Claim // if it counts for a host
	given    bool
}

// note counts a connection of a budget, at a place in its order.
func (b *modelBudget) note(e *modelConn, place int) {
	kind := 0
	if e.shown {
		kind = 1
	}
	b.connections, b.memory = b.connections+1, b.memory+e.memory
	b.kinds[kind]++
	if o := &b.oldestOf[kind]; !e.held && (o.e == nil || place < o.place) {
		o.e, o.place = e, place
	}
	b.oldest = b.oldestOf[0].e
	if b.oldest == nil || 2*b.kinds[1] > b.connections && b.oldestOf[1].e != nil {
		b.oldest = b.oldestOf[1].e
	}
}

type model struct {
	conns   []*modelConn
	allowed [8]bool
	next    int
	clock   int64        // in nanoseconds
	evicted []*modelConn // by the current operation
	room    [2]int       // how many more may be evicted
	ending  [8]int       // evicted ones, by host of the newer connection
	failed  recent
}

// given returns the resources of connections of allowed hosts that match accepts.
func (m *model) given(match func(*modelConn) bool) (u usage) {
	for _, e := range m.conns {
		if e.given && match(e) {
			if u[resMemory] += e.memory; !e.left {
				u[resConnections]++
			}
		}
	}
	return u
}

// left is the memory that allowed hosts leave.
func (m *model) left() int64 {
	return 1<<20 - m.given(func(*modelConn) bool { return true })[resMemory]
}

func (m *model) fail(e *modelConn) {
	if e.class == unassociated && !m.allowed[e.host] {
		m.failed.add(addr(e.host), time.Unix(0, m.clock))
	}
}

// shares reports whether a queue is within the shares.
func (m *model) shares(host int, claim *fabric.Claim, n usage) bool {
	all := m.given(func(*modelConn) bool { return true })
	own := m.given(func(e *modelConn) bool {
		return e.claim.Host == claim.Host && e.claim.Proven == claim.Proven
	})
	network := m.given(func(e *modelConn) bool { return e.host == host && !e.claim.Proven })
	if claim.Proven && own[resConnections] >= 200 ||
		!claim.Proven && network[resConnections] >= 200 {
		return false
	}
	for r, limit := range []int64{512, 1 << 20} {
		part := map[[2]bool]int64{
			{false, false}: 8, {true, false}: 16, {false, true}: 32, {true, true}: limit + 1,
		}[[2]bool{claim.Proven, claim.Admin}]
		left := limit - all[r] - n[r] - limit/part
		most := max(2*left, limit/16)
		ok := left >= 0 && (own[r] == 0 || own[r]+n[r] <= most)
		if !claim.Proven {
			little := left >= 0 && network[r]+n[r] <= left/8
			ok = (ok || little) && (network[r] == 0 || network[r]+n[r] <= most)
		}
		if !ok {
			return false
		}
	}
	return true
}

func (m *model) kind(host int) int {
	if m.allowed[host] {
		return 1
	}
	return 0
}

// modelBudget is the part of the limits that the connections of a class take, for one address or
// for all addresses of its kind.
type modelBudget struct {
	connections int
	memory      int64
	oldest      *modelConn
	// The same, separately for connections without and with a shown key.
	kinds    [2]int
	oldestOf [2]struct {
		e     *modelConn
		place int
	}
}

func (m *model) budget(host int, cl class, own bool) (b modelBudget) {
	for _, e := range m.conns {
		if e.class != cl || e.host != host && (own || m.kind(e.host) != m.kind(host)) {
			continue
		}
		if own {
			b.note(e, e.own)
		} else {
			b.note(e, e.all)
		}
	}
	return b
}

// evict evicts the oldest connection of a budget for one of a host, if that is allowed.
func (m *model) evict(by int, b modelBudget) bool {
	e := b.oldest
	if e == nil || e.class == discovery && m.clock-e.since < int64(discoveryAge) {
		return false
	}
	room, own := m.room[m.kind(e.host)], m.ending[by]
	if room == 0 || own > 0 && own+1 > 2*(room-1) {
		return false
	}
	m.room[m.kind(e.host)]--
	m.ending[by]++
	e.by = by
	m.fail(e)
	e.class, e.evicted = inNoBudget, true
	m.evicted = append(m.evicted, e)
	return true
}

// mostMemory is the memory limit of a budget. For all addresses it is a part of the memory that
// allowed hosts leave, and for one address also a part of the limit.
func (m *model) mostMemory(host int, cl class, own bool) int64 {
	l := modelLimits[m.kind(host)][cl]
	most := m.left() / l[0].part
	if own {
		most = min(most, (1<<20)/l[1].part)
	}
	return most
}

// makeRoom is Counter.makeRoom.
func (m *model) makeRoom(host int, cl class, memory int64) bool {
	for i, own := range []bool{true, false} {
		l := modelLimits[m.kind(host)][cl][1-i]
		for {
			b := m.budget(host, cl, own)
			if b.connections < l.connections &&
				(b.connections == 0 || b.memory+memory <= m.mostMemory(host, cl, own)) {
				break
			}
			if !m.evict(host, b) {
				return false
			}
		}
	}
	return true
}

// open counts the connections that were not evicted: all of them if host is negative, otherwise the
// connections of strangers at one address.
func (m *model) open(host int) (n int) {
	for _, e := range m.conns {
		if !e.left && !e.evicted && (host < 0 || host == e.host && !e.given) {
			n++
		}
	}
	return n
}

func (m *model) memory() (n int64) {
	for _, e := range m.conns {
		n += e.memory
	}
	return n
}

// strangers is the budget of unassociated connections from addresses that are not allowed.
func (m *model) strangers() (b modelBudget) {
	for _, e := range m.conns {
		if e.class == unassociated && !m.allowed[e.host] {
			b.note(e, e.all)
		}
	}
	return b
}

// admits reports whether a connection has to be admitted.
func (m *model) admits(host int, memory int64) bool {
	if m.memory()+memory > 1<<20 {
		return false
	}
	now := time.Unix(0, m.clock)
	if b := m.strangers(); !m.allowed[host] && (b.connections >= 64 || b.memory > m.left()/8) &&
		m.failed.has(addr(host), now) {
		m.failed.add(addr(host), now)
		oldest := m.strangers().oldest
		if oldest == nil || m.clock-oldest.since < int64(turnLength) ||
			!m.evict(host, m.budget(oldest.host, unassociated, false)) {
			return false
		}
	}
	if !m.makeRoom(host, unassociated, memory) {
		return false
	}
	if m.open(host) >= 200 {
		if !m.evict(host, m.budget(host, unassociated, true)) {
			return false
		}
	}
	for kind := range 2 {
		if m.open(-1) < 512 {
			break
		}
		for h := range m.allowed {
			if m.kind(h) == kind {
				m.evict(host, m.budget(h, unassociated, false))
				break
			}
		}
	}
	return m.open(-1) < 512
}

// TestModel performs random operations on a Counter and compares the admitted and evicted
// connections with the model.
func TestModel(t *testing.T) {
	ops := testutil.Rounds(50_000, 500_000)
	rnd := rand.New(rand.NewPCG(1, 2))
	c := New(Limits{Connections: 512, PerHost: 200, Memory: 1 << 20, Turns: true})
	m := &model{clock: int64(time.Second), room: [2]int{maxEvicted, maxEvicted}}
	c.now = func() time.Time { return time.Unix(0, m.clock) }
	// told checks that exactly the connections evicted in the model were evicted.
	told := func(op int) {
		for _, e := range m.evicted {
			testutil.MustTrue(t, e.told, "operation %d: not evicted: %+v", op, e)
		}
		m.evicted = m.evicted[:0]
	}
	leave := func(e *modelConn) {
		if !e.left {
			m.fail(e)
			e.e.Leave()
			if e.left = true; e.told {
				m.room[e.e.evictedFrom]++
				m.ending[e.by]--
			}
			e.class = inNoBudget
			return
		}
		e.e.Uncharge()
		m.conns = slices.DeleteFunc(m.conns, func(o *modelConn) bool { return o == e })
	}
	for op := range ops {
		// In most phases more connections arrive than leave. In some of these, most come from one
		// address, need much memory, or arrive fast.
		phase := op / 2000
		m.clock += int64(rnd.IntN(300)) * int64(time.Millisecond) >> (phase % 4 * 2)
		what := rnd.IntN(20)
		if phase%3 == 0 && what < 10 {
			what += 10
		}
		switch {
		case what < 10:
			host, memory := rnd.IntN(8), int64(rnd.IntN(1<<10))
			if phase%2 == 0 && rnd.IntN(8) != 0 {
				host = phase / 2 % 8
			}
			if phase%5 == 0 {
				memory *= 5
			}
			want := m.admits(host, memory)
			e := &modelConn{host: host, memory: memory, since: m.clock, all: m.next, own: m.next}
			m.next++
			var err error
			e.e, err = c.Admit(addr(host), memory, func(error) { e.told = true })
			testutil.MustTrue(t, (err == nil) == want,
				"operation %d: %v, admitted by the model: %v", op, err, want)
			if err == nil {
				m.conns = append(m.conns, e)
			}
			told(op)
		case len(m.conns) == 0:
		case what < 18:
			e := m.conns[rnd.IntN(len(m.conns))]
			if e.class != unassociated && !e.told {
				break // its Connect command has succeeded
			}
			if rnd.IntN(4) == 0 && !e.left && !e.told {
				if e.held && rnd.IntN(2) == 0 {
					e.shown = true
					e.e.Shown()
				}
				e.held = !e.held
				e.e.Hold(e.held)
				if e.class != inNoBudget {
					e.since = m.clock
				}
				e.all, e.own = m.next, m.next
				m.next++
				break
			}
			p := fabric.Peer(rnd.IntN(2))
			if e.host >= 4 && rnd.IntN(3) == 0 { // the others always remain strangers
				p = fabric.Allowed
			}
			more := int64(rnd.IntN(1 << 10))
			claim := fabric.Claim{
				Host: string(rune('a' + e.host%6)), Proven: rnd.IntN(2) == 0,
				Admin: rnd.IntN(2) == 0,
			}
			want := !e.told && !e.left && m.memory()+more <= 1<<20
			if want {
				want = m.associate(e, p, &claim, more)
			}
			if err := e.e.Associate(p, claim, more); (err == nil) != want {
				t.Fatalf("operation %d: %v, associated by the model: %v", op, err, want)
			}
			told(op)
		default:
			leave(m.conns[rnd.IntN(len(m.conns))])
		}
		if u := c.Usage(); u.Memory != m.memory() {
			t.Fatalf("operation %d: %d bytes, want %d", op, u.Memory, m.memory())
		}
	}
	u := c.Usage()
	testutil.True(t, u.Evicted != 0 && u.Refused != 0, "%+v: nothing is tested", u)
	for len(m.conns) > 0 {
		leave(m.conns[0])
	}
	(&counter{Counter: c, t: t}).empty()
}

// associate is Conn.move.
func (m *model) associate(e *modelConn, p fabric.Peer, claim *fabric.Claim, more int64) bool {
	if p == fabric.Allowed && !m.shares(e.host, claim, usage{1, e.memory + more}) {
		return false
	}
	e.class = inNoBudget
	cl := []class{unassociated, discovery, inNoBudget}[p]
	done := p == fabric.Allowed || m.makeRoom(e.host, cl, e.memory+more)
	if !done {
		cl, more = unassociated, 0
	} else {
		e.since = m.clock
	}
	e.memory, e.class, e.all, e.own = e.memory+more, cl, m.next, m.next
	m.next++
	if p == fabric.Allowed {
		e.claim, e.given = *claim, true
		m.allow(e.host)
	}
	return done
}

// allow moves the connections of an address, in their order, after the allowed ones.
func (m *model) allow(host int) {
	if m.allowed[host] {
		return
	}
	for cl := range classes {
		var list []*modelConn
		for _, e := range m.conns {
			if e.host == host && e.class == cl {
				list = append(list, e)
			}
		}
		slices.SortFunc(list, func(a, b *modelConn) int { return a.own - b.own })
		for _, e := range list {
			e.all = m.next
			m.next++
		}
	}
	m.allowed[host] = true
}
