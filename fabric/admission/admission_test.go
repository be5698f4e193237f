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
