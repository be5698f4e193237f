package admission

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var one, two = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// proven is the claim of a host that has proven its NQN, for an admin queue: no part of a limit is
// kept from it.
func proven(nqn string) fabric.Claim { return fabric.Claim{Host: nqn, Proven: true, Admin: true} }

var claim = proven("host")

// addr returns a different address for each i.
func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// refused expects an error that contains text, or no error if text is empty.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	testutil.True(t, (err == nil) == (text == "") &&
		(err == nil || strings.Contains(err.Error(), text)), "%v, want %q", err, text)
}

// counter is a Counter with a fake clock that records the evicted connections.
type counter struct {
	*Counter
	t       *testing.T
	clock   time.Time
	evicted map[string]bool
}

func newCounter(t *testing.T, l Limits) *counter {
	l.Turns = true
	c := &counter{Counter: New(l), t: t, clock: time.Unix(1, 0), evicted: map[string]bool{}}
	c.now = func() time.Time { return c.clock }
	return c
}

// admit admits a connection and records its name when it is evicted.
func (c *counter) admit(name string, a netip.Addr, memory int64) *Conn {
	c.t.Helper()
	e, err := c.Admit(a, memory, func(error) { c.evicted[name] = true })
	testutil.MustEqual(c.t, err, nil, "%s", name)
	return e
}

// allowed admits a connection on which an allowed host sends Connect.
func (c *counter) allowed(name string, a netip.Addr) *Conn {
	c.t.Helper()
	e := c.admit(name, a, 0)
	refused(c.t, e.Associate(fabric.Allowed, claim, 0), "")
	return e
}

// expect compares the connections evicted since the last call.
func (c *counter) expect(names ...string) {
	c.t.Helper()
	for _, n := range names {
		testutil.True(c.t, c.evicted[n], "%s was not evicted", n)
		delete(c.evicted, n)
	}
	for n := range c.evicted {
		c.t.Errorf("%s was evicted", n)
	}
	clear(c.evicted)
}

// empty expects that everything was given back.
func (c *counter) empty() {
	c.t.Helper()
	u := c.Usage()
	want := fabric.Usage{
		MemoryLimit: c.limits.Memory, Refused: u.Refused, Evicted: u.Evicted,
		OverShare: u.OverShare, OutOfTurn: u.OutOfTurn,
	}
	testutil.True(c.t, len(c.Counter.hosts) == 0 && c.given == (usage{}) && u == want,
		"%+v is left", u)
	for a, h := range c.networks {
		testutil.True(c.t, h.allowed && h.total == 0 && h.node.Listed(), "%v is left: %+v", a, h)
	}
	for _, budgets := range c.budgets {
		for cl := range budgets {
			if s := &budgets[cl]; s.connections != 0 || s.memory != 0 || !s.conns.Empty() {
				c.t.Errorf("a budget is left: %+v", s)
			}
		}
	}
}

// Strangers that hold everything they can get neither reach the connections of hosts nor keep a
// host from connecting from any address.
func TestStrangers(t *testing.T) {
	for _, from := range []string{"one address", "many", "the host's"} {
		c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
		for i := range 100 {
			c.allowed("a host", addr(5000+i%10))
		}
		flood := func(n int) {
			for i := range n {
				a := one
				if from == "many" {
					a = addr(i)
				} else if from == "the host's" {
					a = two
				}
				e, err := c.Admit(a, 1<<10, func(error) {})
				if err == nil && i%2 == 0 {
					_ = e.Associate(fabric.Discovery, claim, 1<<10)
				}
			}
		}
		flood(maxEvicted) // evicts at most that many, and none of them leaves
		for round := range 3 {
			for range 8 {
				c.allowed("the host", two)
			}
			c.expect()
			if round == 0 {
				clear(c.Counter.evicted[:]) // they leave
			}
			flood(maxEvicted / 2)
		}
	}
}

// Evicted connections that have not left count for the network of the newer ones, which can never
// have so many that another network has no place. A network is known until all of them have left.
func TestEvictedHaveOwners(t *testing.T) {
	for _, known := range []bool{false, true} {
		c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
		c.limits.Turns = false
		others := []netip.Addr{addr(1), addr(2), addr(3)}
		all := []*Conn{c.admit("", one, 0)}
		if known {
			for _, a := range append(others, one) {
				all = append(all, c.allowed("", a))
			}
		}
		fill := func(a netip.Addr) {
			for {
				e, err := c.Admit(a, 0, func(error) {})
				if err != nil {
					refused(t, err, "have not ended yet")
					return
				}
				all = append(all, e)
			}
		}
		fill(one)
		testutil.Equal(t, c.networks[one].ending, 85, "wait for the end, of the first network")
		for _, a := range others {
			fill(a)
			testutil.True(t, c.networks[a].ending > 0, "%v has no place", a)
		}
		for _, e := range all {
			e.Leave()
			e.Uncharge()
		}
		c.empty()
	}
}

// TestLimitWhileEvictedStay: at the limit of a network, or of all connections, the reason for a
// refusal is that evicted connections have not left, so that AdmitWait waits for them.
func TestLimitWhileEvictedStay(t *testing.T) {
	for _, o := range []struct {
		l     Limits
		hosts int
	}{
		{Limits{Connections: 512, PerHost: 8, Memory: 1 << 30}, 0},
		{Limits{Connections: 64, PerHost: 64, Memory: 1 << 30}, 60},
	} {
		c := newCounter(t, o.l)
		c.limits.Turns = false
		for i := range o.hosts {
			e := c.admit("", addr(i), 0)
			refused(t, e.Associate(fabric.Allowed, proven(fmt.Sprint(i)), 0), "")
		}
		for err := error(nil); err == nil; {
			if _, err = c.Admit(one, 0, func(error) {}); err != nil {
				refused(t, err, "have not ended yet")
			}
		}
		testutil.Equal(t, c.networks[one].ending, 85, "wait for the end")
	}
}

// AdmitWait waits for one evicted connection to leave. If none leaves, it does not wait again.
func TestAdmitWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Limits{Connections: 64, PerHost: 64, Memory: 1 << 30})
		var open []*Conn
		for i := range 16 + maxEvicted {
			open = append(open, testutil.Value(c.Admit(addr(i), 0, func(error) {}))(t))
		}
		for i, o := range []struct {
			leaves, waits bool
			want          string
		}{
			{true, true, ""},
			{false, true, "have not ended yet"},
			{false, false, "have not ended yet"},
			{true, false, ""},
		} {
			if o.leaves && !o.waits {
				open[i].Leave()
			}
			done := make(chan error, 1)
			go func() {
				_, err := c.AdmitWait(addr(1000+i), 0, func(error) {})
				done <- err
			}()
			synctest.Wait()
			testutil.Equal(t, len(done) == 0, o.waits, "connection %d waits", i)
			if o.leaves && o.waits {
				open[i].Leave()
			}
			refused(t, <-done, o.want)
		}
		testutil.Equal(t, c.Usage().Refused, 2, "connections are refused")
	})
}

// A host that has yet to authenticate is unassociated: other hosts that only send Connect never
// keep it out.
func TestUnproven(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 51200})
	for i := range 1000 {
		e := c.admit("half open", addr(i), 10)
		refused(t, e.Associate(fabric.Unproven, claim, 10), "")
		if i%3 == 0 {
			e.Leave() // evicted ones do
			e.Uncharge()
		}
		clear(c.Counter.evicted[:])
	}
	e := c.admit("the host", two, 10)
	refused(t, e.Associate(fabric.Unproven, claim, 10), "")
	c.admit("another", one, 10)
	c.expect("half open")
	refused(t, e.Associate(fabric.Allowed, claim, 0), "")
	u := c.Usage()
	testutil.True(t, u.Discovery == 0 && u.Unassociated <= 128, "%+v", u)
}

// The number of addresses without connections that are remembered is bounded.
func TestForgotten(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	for i := range idleNetworks + 10 {
		e := c.allowed("host", addr(i))
		e.Leave()
		e.Uncharge()
	}
	testutil.Equal(t, len(c.networks), idleNetworks, "addresses are remembered")
	testutil.True(t, c.networks[addr(9)] == nil && c.networks[addr(10)] != nil,
		"not the oldest were forgotten")
	c.empty()
}

// ip6 is the i-th address of the n-th /64.
func ip6(n, i int) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0x20, 1, 0xD, 0xB8, 6: byte(n >> 8), 7: byte(n), 8: byte(i), 14: byte(i >> 8), 15: byte(i),
	})
}

// TestSharesInPieces: a list of the shares of many hosts does not keep reactors from the lock.
func TestSharesInPieces(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, n := range []int{1000, 8192} {
		c := New(Limits{Connections: 2 * n, Memory: 1 << 30})
		for i := range n {
			key := subnet.Owner{NQN: fmt.Sprint(i)}
			c.hosts[key] = &owner{Owner: key, used: usage{resConnections: 1}}
		}
		var got atomic.Bool
		go func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			got.Store(true)
		}()
		testutil.Equal(t, len(c.Shares()), n, "shares")
		testutil.True(t, got.Load(), "%d hosts: the lock is not given away", n)
	}
}

// turnsFlood sends 10,000 ClientHellos a second, each from the next network. Meanwhile 24 new
// networks come, one every 100 ms. The target works on the oldest ClientHello.
type turnsFlood struct {
	networks int
	ip6      bool
	turns    int // a second, which the processors allow
	stays    int // ClientHellos until a peer of the flood leaves; 0: it waits for the answer
	after    int // ClientHellos before the first new network
	want     int // new networks that have their turn, at least
}

// handshake is a connection of the flood or of a new network.
type handshake struct {
	*Conn
	fresh, ended bool
	leaves       int
}

func (h *handshake) end() {
	if !h.ended {
		h.ended = true
		h.Leave()
		h.Uncharge()
	}
}

// run returns how many new networks had their turn.
func (f *turnsFlood) run(t *testing.T) (served int) {
	c := newCounter(t, Limits{Connections: 8192, PerHost: 4096, Memory: 1 << 30})
	const perSecond, tries, pause = 10_000, 24, 1001
	var waiting, peers []*handshake // by age; evicted ones are still in it
	come := func(a netip.Addr, fresh bool, leaves int) {
		h := &handshake{fresh: fresh, leaves: leaves}
		var err error
		if h.Conn, err = c.Admit(a, 95<<10, func(error) { h.ended = true }); err == nil {
			waiting = append(waiting, h)
			if !fresh {
				peers = append(peers, h)
			}
		}
	}
	work := 0
	for i := range f.after + tries*pause + perSecond {
		c.clock = c.clock.Add(time.Second / perSecond)
		for f.stays > 0 && len(peers) > 0 && i >= peers[0].leaves {
			peers[0].end()
			peers = peers[1:]
		}
		if a := i % f.networks; f.ip6 {
			come(ip6(a, i), false, i+f.stays)
		} else {
			come(netip.AddrFrom4([4]byte{11, byte(a >> 16), byte(a >> 8), byte(a)}), false,
				i+f.stays)
		}
		if n := i - f.after; n >= 0 && n < tries*pause && n%pause == 0 {
			come(netip.AddrFrom4([4]byte{12, 0, 0, byte(n / pause)}), true, 0)
		}
		for work += f.turns; work >= perSecond && len(waiting) > 0; {
			h := waiting[0]
			waiting = waiting[1:]
			if h.ended {
				h.Leave()
				h.Uncharge()
				continue
			}
			h.end()
			work -= perSecond
			if h.fresh {
				served++
			}
		}
		work = min(work, perSecond)
	}
	return served
}

// TestTurns: ClientHellos of a flood keep no new network out if the networks of the flood have
// failed, if its peers do not wait, or if they are no more than the processors allow.
func TestTurns(t *testing.T) {
	const early, late, stays = 20_000, 70_000, 256
	for _, f := range []turnsFlood{
		{65_536, false, 2000, 0, late, 21}, // each network has failed
		{65_536, false, 10_000, 0, early, 24},
		{65_536, false, 500, stays, early, 24},
		{65_536, true, 500, stays, early, 24},
		{4096, false, 2000, 0, early, 24},
		{4096, true, 2000, 0, early, 24},
		{256, true, 2000, 0, early, 24},
		{16, false, 2000, 0, early, 24},
	} {
		n := f.run(t)
		testutil.True(t, n >= f.want, "%d of 24 new networks had their turn: %+v", n, f)
	}
}

// TestForgottenInAFlood: while more networks fail than can be remembered, a network that has failed
// and tries again every second is forgotten like the others.
func TestForgottenInAFlood(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	c.failed.add(one, c.clock)
	var open []*Conn
	leave := func(e *Conn) {
		e.Leave()
		e.Uncharge()
	}
	far := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	const perSecond = 10_000
	for i := range 4 * mostRecent {
		c.clock = c.clock.Add(time.Second / perSecond)
		e, err := c.Admit(far(i), 0, func(error) {})
		if err == nil {
			open = append(open, e)
		}
		if len(open) > 80 { // 64 of them fill half the budget, and 128 evict each other
			leave(open[0])
			open = open[1:]
		}
		if i%perSecond != perSecond/2 {
			continue
		}
		if _, err = c.Admit(one, 0, func(error) {}); err == nil {
			return
		}
	}
	t.Error("it is kept out for as long as the flood lasts")
}

// TestSharesListed: the listed maximum of an owner is the most that it gets.
func TestSharesListed(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 400, Memory: 1 << 30})
	for _, proven := range []bool{true, false} {
		n := 0
		for ; ; n++ {
			claim := fabric.Claim{Host: "h", Proven: proven}
			e := c.admit("", one, 1<<20)
			if e.Associate(fabric.Allowed, claim, 0) != nil {
				break
			}
		}
		listed := 0
		for _, s := range c.Shares() {
			if s.Proven != proven {
				continue
			}
			if listed++; s.Connections != int64(n) || s.Memory != int64(n)<<20 ||
				s.MostConnections-s.Connections > 1 || s.MostMemory < s.Memory {
				t.Errorf("%d connections: %+v", n, s)
			}
		}
		testutil.True(t, listed == map[bool]int{true: 1, false: 2}[proven] && n >= 50,
			"%d shares of %d connections", listed, n)
	}
}

// TestRecent: a network is remembered for at least a period. If there are too many, the oldest are
// forgotten. Few networks are wrongly remembered.
func TestRecent(t *testing.T) {
	var r recent
	now := time.Unix(1, 0)
	testutil.True(t, !r.has(one, now), "nothing has failed")
	for i := range 2 * mostRecent {
		r.add(ip6(i, 0), now)
	}
	confused := 0
	for i := range 10_000 {
		if r.has(addr(i), now) {
			confused++
		}
	}
	testutil.True(t, confused <= 60, "%d of 10000 networks are confused with others", confused)
	for i := mostRecent; i < 2*mostRecent; i++ {
		testutil.MustTrue(t, r.has(ip6(i, 0), now), "network %d is forgotten", i)
	}
	r = recent{}
	r.add(one, now)
	r.add(two, now.Add(recentPeriod)) // starts another filter
	testutil.True(t, r.has(one, now.Add(2*recentPeriod-1)) && r.has(two, now.Add(2*recentPeriod)),
		"forgotten within a period")
	r.add(addr(1), now.Add(2*recentPeriod))
	testutil.True(t, !r.has(one, now.Add(2*recentPeriod)), "remembered for more than two periods")
	if later := now.Add(10 * recentPeriod); r.has(two, later) {
		t.Error("remembered for ever")
	} else if r.add(one, later); r.has(two, later) || !r.has(one, later) {
		t.Error("remembered for ever beside another one")
	}
}
