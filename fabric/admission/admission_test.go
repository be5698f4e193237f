package admission

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var one, two = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// proven is the claim of a host that has proven its NQN, for an admin queue: no part of a limit is
// kept from it.
func proven(nqn string) fabric.Claim {
	return fabric.Claim{Host: nqn, Proven: true, Admin: true}
}

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

// discovery admits the connection of a discovery controller.
func (c *counter) discovery(name string, a netip.Addr) *Conn {
	c.t.Helper()
	e := c.admit(name, a, 0)
	refused(c.t, e.Associate(fabric.Discovery, claim, 0), "")
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

func TestLimits(t *testing.T) {
	c := newCounter(t, Limits{Connections: 3, PerHost: 2, Memory: 100 << 10})
	host := func(a netip.Addr, memory int64) *Conn {
		e := c.admit("a host", a, memory)
		refused(t, e.Associate(fabric.Allowed, proven(a.String()), 0), "")
		return e
	}
	admit := func(a netip.Addr, memory int64) error {
		_, err := c.Admit(a, memory, nil)
		return err
	}
	a, b := host(one, 10<<10), host(one, 10<<10)
	third := c.admit("third", one, 0)
	refused(t, third.Associate(fabric.Allowed, proven(one.String()), 0),
		`host "192.0.2.1" has 2 connections, the limit`)
	third.Leave()
	third.Uncharge()
	refused(t, admit(two, 81<<10),
		"2 queues have 20 KiB of memory and this one wants 81, the limit is 100")
	d := host(two, 0)
	refused(t, admit(netip.MustParseAddr("192.0.2.3"), 0), "3 connections are open")
	if u := c.Usage(); u != (fabric.Usage{
		Connections: 3, Memory: 20 << 10, MemoryLimit: 100 << 10, Refused: 3, OverShare: 1,
	}) {
		t.Errorf("%+v", u) // refused connections are not counted
	}
	refused(t, d.Charge(70<<10), "")
	refused(t, c.Charge(10<<10), "")
	refused(t, c.Charge(1), "the limit is 100")
	refused(t, d.Charge(1), "the limit is 100")
	a.Leave()
	e := host(addr(1), 0)
	c.Uncharge(10 << 10)
	for _, e := range []*Conn{b, d, e} {
		e.Leave()
		e.Uncharge()
	}
	if n := c.Usage().Memory; n != 10<<10 {
		t.Errorf("a connection that has left, but is not uncharged, has %d bytes", n)
	}
	a.Uncharge()
	c.empty()
	kept := c.admit("kept", one, 5)
	kept.Keep()
	kept.Leave()
	kept.Uncharge()
	u := c.Usage()
	testutil.True(t, u.Memory == 5 && u.Connections == 0, "%+v with memory that is kept", u)
	c.Close()
	refused(t, admit(one, 0), "closing")
	refused(t, a.Associate(fabric.Allowed, claim, 0), "ended")
}

// An unassociated connection that finds no room evicts the oldest one, first one from its own
// address.
func TestEviction(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	c.admit("first", two, 0)
	for i := range 32 { // 1/16
		c.admit(fmt.Sprint(i), one, 0)
	}
	c.expect()
	c.admit("of the same address", one, 0)
	c.expect("0")
	for i := 33; i < 128; i++ { // 1/4
		c.admit("another", addr(i), 0)
	}
	c.expect()
	c.admit("of another address", addr(1000), 0)
	c.expect("first")
	if u := c.Usage(); u.Connections != 130 || u.Unassociated != 128 || u.Evicted != 2 {
		t.Errorf("%+v", u) // evicted ones stay open until they leave
	}
}

// The memory of a budget is limited, too, but one connection always has room.
func TestBudgetOfMemory(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1600})
	c.admit("large", one, 150)
	c.admit("small", one, 50)
	c.expect("large")
	c.admit("another", one, 51)
	c.expect("small")
	for i := range 4 {
		c.admit(fmt.Sprint(i), addr(i), 100)
	}
	c.expect("another")
	e := c.admit("a", two, 100)
	c.expect("0")
	refused(t, e.Charge(500), "")
	c.admit("b", addr(9), 0)
	c.expect("1", "2", "3", "a")
	refused(t, c.admit("c", addr(10), 0).Associate(fabric.Allowed, claim, 300), "")
	testutil.True(t, e.Associate(fabric.Allowed, claim, 0) != nil,
		"a Connect succeeds on an evicted connection")
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

// The number of evicted connections that have not left is bounded. When they leave there is room
// again.
func TestEvictedStay(t *testing.T) {
	c := newCounter(t, Limits{Connections: 64, PerHost: 64, Memory: 1 << 30})
	var first []*Conn
	for i := range 16 + maxEvicted {
		first = append(first, c.admit("x", addr(i), 0))
	}
	_, err := c.Admit(one, 0, nil)
	refused(t, err, "have not ended yet")
	testutil.Equal(t, c.Usage().Connections, 16+maxEvicted, "connections are open")
	first[0].Leave()
	c.admit("y", two, 0)
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
// refusal is that evicted connections have not left, so that AdmitSoon waits for them.
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

// AdmitSoon waits for one evicted connection to leave. If none leaves, it does not wait again.
func TestAdmitSoon(t *testing.T) {
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
				_, err := c.AdmitSoon(addr(1000+i), 0, func(error) {})
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

// Discovery controllers have budgets of their own, and are safe for a while.
func TestDiscovery(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	for i := range 16 {
		c.discovery(fmt.Sprint(i), one)
	}
	e := c.admit("e", one, 0)
	refused(t, e.Associate(fabric.Discovery, claim, 0), "too many discovery controllers")
	c.clock = c.clock.Add(discoveryAge)
	refused(t, e.Associate(fabric.Discovery, claim, 0), "")
	c.expect("0")
	for i := range 18 { // with the first address, 1/16 of all and two more
		c.discovery("other", addr(i))
	}
	c.expect("1", "2")
	u := c.Usage()
	testutil.True(t, u.Discovery == 32 && u.Unassociated == 0, "%+v", u)
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

// An address that an allowed host has connected from has budgets of its own from then on. They also
// count its existing connections, and they stay when all of them have ended.
func TestAllowedAddress(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	before := []*Conn{c.admit("before", two, 1), c.discovery("of the host", two)}
	testutil.True(t, !before[0].FromAllowed(), "allowed before a Connect")
	e := c.allowed("host", two)
	for i := range 130 {
		testutil.True(t, !c.admit("stranger", addr(i), 1).FromAllowed(), "a stranger is allowed")
	}
	testutil.True(t, before[0].FromAllowed(), "not allowed after a Connect")
	c.expect("stranger")
	if s := &c.budgets[1][unassociated]; s.connections != 1 || s.memory != 1 {
		t.Errorf("%d connections in the budget of allowed addresses", s.connections)
	}
	for _, e := range append(before, e) {
		e.Leave()
		e.Uncharge()
	}
	for range 128 { // 1/4 of all, where others have 1/16
		c.admit("again", two, 1)
	}
	c.expect()
	c.admit("one more", two, 1)
	c.expect("again")
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
