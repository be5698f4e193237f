package admission

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// ip6 is the i-th address of the n-th /64.
func ip6(n, i int) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0x20, 1, 0xD, 0xB8, 6: byte(n >> 8), 7: byte(n), 8: byte(i), 14: byte(i >> 8), 15: byte(i),
	})
}

// connect admits a queue with this memory and associates it.
func (c *counter) connect(a netip.Addr, claim fabric.Claim, memory int64) (*Conn, error) {
	e, err := c.Admit(a, memory, func(error) {})
	if err != nil {
		return nil, err
	}
	if err := e.Associate(fabric.Allowed, claim, 0); err != nil {
		e.Leave()
		e.Uncharge()
		return nil, err
	}
	return e, nil
}

// fill connects I/O queues, each from the next address, until one is refused.
func (c *counter) fill(from func(i int) netip.Addr, claim fabric.Claim, memory int64) (n int,
	err error,
) {
	for ; ; n++ {
		if _, err := c.connect(from(n), claim, memory); err != nil {
			return n, err
		}
	}
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

// TestShares: even if one host takes all the connections or memory it can, from one address or
// many, others have their shares, admin queues first. Each case is the worst that its kind of host
// can do.
func TestShares(t *testing.T) {
	v4 := func(n int) func(int) netip.Addr { return func(i int) netip.Addr { return addr(i % n) } }
	for _, tc := range []struct {
		name   string
		from   func(i int) netip.Addr
		proven bool
		memory int64
		text   string
	}{
		{"three addresses", v4(3), false, 1, `host "a" has`},
		{"many addresses", v4(256), false, 1, `host "a" has`},
		{
			"many addresses of a /64", func(i int) netip.Addr { return ip6(1, i) }, false, 1,
			"4096 connections from 2001:db8:0:1::/64 are open, the limit",
		},
		{"proven", v4(3), true, 1, `host "a" has`},
		{"proven, deep", v4(1), true, 4 << 20, "KiB of queue memory, its share"},
		{"deep", v4(1), false, 4 << 20, "KiB of queue memory, their share"},
		{"deep, many addresses", v4(256), false, 4 << 20, "KiB of queue memory, its share"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCounter(t, Limits{Connections: 8192, PerHost: 4096, Memory: 1 << 30})
			n, err := c.fill(tc.from, fabric.Claim{Host: "a", Proven: tc.proven}, tc.memory)
			refused(t, err, tc.text)
			t.Logf("%d: %v", n, err)
			testutil.True(t, n >= 100, "a host that is alone has only %d queues", n)
			for _, proven := range []bool{false, true} {
				b := fabric.Claim{Host: "b", Proven: proven, Admin: true}
				for range 4 {
					testutil.MustEqual(t, testutil.Err(c.connect(two, b, 100<<10)), nil,
						"an admin queue of another host")
				}
				b.Admin = false
				for range 32 {
					testutil.MustEqual(t, testutil.Err(c.connect(two, b, 150<<10)), nil,
						"an I/O queue of another host")
				}
			}
		})
	}
}

// TestReserves: I/O queues of any number of hosts leave the last parts of a limit to admin queues.
// Queues of hosts that only claim their NQN leave a part to hosts that have proven it.
func TestReserves(t *testing.T) {
	c := newCounter(t, Limits{Connections: 1600, PerHost: 1600, Memory: 1 << 30})
	total := 0
	for _, step := range []struct {
		proven, admin bool
		total         int
		text          string
	}{
		{false, false, 1400, "1400 of 1600 connections are in use, the rest is kept for admin " +
			"queues and hosts that have proven their NQN"},
		{true, false, 1500, "the rest is kept for admin queues"},
		{false, true, 1550, "the rest is kept for hosts that have proven their NQN"},
		{true, true, 1600, "1600 connections are open, the limit"},
	} {
		var err error
		for ; err == nil; total++ {
			_, err = c.connect(addr(total), fabric.Claim{
				Host: fmt.Sprint(total), Proven: step.proven, Admin: step.admin,
			}, 0)
		}
		refused(t, err, step.text)
		total--
		testutil.True(t, total == step.total, "%+v: %d", step, total)
	}
}

// TestClaimedName: a peer that claims the NQN of another host takes nothing from that host if the
// host has proven the NQN, and leaves it a part otherwise.
func TestClaimedName(t *testing.T) {
	c := newCounter(t, Limits{Connections: 8192, PerHost: 4096, Memory: 1 << 30})
	_, err := c.fill(func(i int) netip.Addr { return addr(i % 3) }, fabric.Claim{Host: "a"}, 0)
	refused(t, err, "its share")
	for range 129 {
		testutil.Value(c.connect(two, fabric.Claim{Host: "a"}, 150<<10))(t)
	}
	for range 1000 {
		testutil.Value(c.connect(one, fabric.Claim{Host: "a", Proven: true}, 150<<10))(t)
	}
}

// TestSmallHosts: hosts that need no more than a sixteenth of a limit are never refused before the
// reserve is reached.
func TestSmallHosts(t *testing.T) {
	c := newCounter(t, Limits{Connections: 1600, PerHost: 1600, Memory: 1 << 30})
	for i := range 14 {
		for range 100 {
			if _, err := c.connect(addr(i), fabric.Claim{Host: fmt.Sprint(i)}, 0); err != nil {
				t.Fatalf("host %d: %v", i, err)
			}
		}
	}
}

// TestProvenHostsShareAnAddress: behind one address, or in one /64, each host that has proven its
// NQN has its own limit, and all others share one.
func TestProvenHostsShareAnAddress(t *testing.T) {
	c := newCounter(t, Limits{Connections: 8192, PerHost: 100, Memory: 1 << 30})
	for i := range 300 {
		testutil.Value(c.connect(ip6(1, i), proven(fmt.Sprint(i%3)), 0))(t)
	}
	_, err := c.connect(ip6(1, 0), proven("0"), 0)
	refused(t, err, `host "0" has 100 connections, the limit`)
	for i := range 100 {
		testutil.Value(c.connect(ip6(1, i), fabric.Claim{Host: fmt.Sprint(i)}, 0))(t)
	}
	_, err = c.connect(ip6(1, 1000), fabric.Claim{Host: "x"}, 0)
	refused(t, err, "100 connections from 2001:db8:0:1::/64 are open, the limit")
	if _, err = c.connect(ip6(1, 1000), proven("3"), 0); err != nil {
		t.Errorf("hosts that have only claimed their NQN keep out one that proves it: %v", err)
	}
}

// TestEverythingIsGivenBack: shares are exactly the resources of open queues, and end at zero.
func TestEverythingIsGivenBack(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	var all []*Conn
	for i := range 100 {
		e, err := c.connect(addr(i%7), fabric.Claim{Host: fmt.Sprint(i % 5), Proven: i%2 == 0}, 100)
		refused(t, err, "")
		refused(t, e.Charge(10), "")
		all = append(all, e)
	}
	for i, e := range all {
		if i%2 == 0 {
			e.Uncharge()
		}
		e.Leave()
		e.Uncharge()
	}
	c.empty()
}

// TestTurns: 20,000 networks with 10,000 failing handshakes a second keep no newcomer out. A
// newcomer is neither refused nor evicted before its turn. The target makes 2,000 handshakes a
// second, the oldest first.
func TestTurns(t *testing.T) {
	c := newCounter(t, Limits{Connections: 8192, PerHost: 4096, Memory: 1 << 30})
	const networks, tries = 20_000, 24
	type handshake struct {
		*Conn
		newcomer, evicted bool
	}
	var waiting []*handshake
	come := func(a netip.Addr, newcomer bool) error {
		h := &handshake{newcomer: newcomer}
		var err error
		h.Conn, err = c.Admit(a, 95<<10, func(error) { h.evicted = true })
		if err == nil {
			waiting = append(waiting, h)
		}
		return err
	}
	refusals, served := 0, 0
	for i := range 8 * networks {
		c.clock = c.clock.Add(100 * time.Microsecond)
		if come(addr(i%networks), false) != nil {
			refusals++
		}
		if i >= 2*networks && i < 2*networks+1000*tries && i%1000 == 0 {
			refused(t, come(ip6(i, 1), true), "")
		}
		for i%5 == 0 && len(waiting) > 0 {
			h := waiting[0]
			waiting = waiting[1:]
			if h.Leave(); h.evicted {
				h.Uncharge()
				continue
			}
			if h.newcomer {
				served++
			}
			h.Uncharge()
			break
		}
	}
	testutil.True(t, served == tries, "%d of %d newcomers had their turn; %d refusals", served,
		tries, refusals)
	_, err := c.Admit(addr(1), 0, nil)
	refused(t, err, "connections from 10.0.0.1 have ended without a Connect command, and others "+
		"wait for their turn")
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

// TestFailedGetsIn: idle strangers do not keep out a host that has failed.
func TestFailedGetsIn(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	e := c.admit("fails", one, 0)
	e.Leave()
	e.Uncharge()
	for i := range 128 {
		c.admit(fmt.Sprint(i), addr(i), 0)
	}
	_, err := c.Admit(one, 0, nil)
	refused(t, err, "others wait for their turn")
	c.clock = c.clock.Add(turnLength)
	c.admit("again", one, 0)
	c.expect("0")
}

// TestHold: a held connection is not evicted.
func TestHold(t *testing.T) {
	c := newCounter(t, Limits{Connections: 512, PerHost: 512, Memory: 1 << 30})
	held := c.admit("held", two, 0)
	held.Hold(true)
	for i := range 128 {
		c.admit(fmt.Sprint(i), addr(i), 0)
	}
	c.expect("0")
	held.Hold(false)
	c.admit("128", addr(128), 0)
	c.expect("1")
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

// TestShown: a connection that has shown a key is evicted first only once more than half have shown
// one, although it is the oldest.
func TestShown(t *testing.T) {
	c := newCounter(t, Limits{Connections: 64, PerHost: 512, Memory: 1 << 30})
	show := func(name string, from netip.Addr) {
		e := c.admit(name, from, 0)
		e.Hold(true)
		e.Shown()
		e.Hold(false)
	}
	show("shown", two)
	for i := range 16 {
		c.admit(fmt.Sprint(i), addr(i), 0)
	}
	c.expect("0")
	for i := range 8 {
		show("other", addr(200+i))
		c.expect(fmt.Sprint(1 + i))
	}
	c.admit("16", addr(16), 0)
	c.expect("shown")
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
	testutil.True(t, confused <= 200, "%d of 10000 networks are confused with others", confused)
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

// TestExample is the example of docs/tuning.md.
func TestExample(t *testing.T) {
	c := newCounter(t, Limits{Connections: 8192, PerHost: 4096, Memory: 1 << 30})
	for _, step := range []struct{ base, want int }{{0, 4778}, {10, 1593}} {
		n, err := c.fill(func(i int) netip.Addr { return addr(step.base + i%3) },
			fabric.Claim{Host: fmt.Sprint(step.base)}, 0)
		testutil.True(t, n == step.want, "%d connections, want %d: %v", n, step.want, err)
	}
}
