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

// turnsFlood sends 10,000 ClientHellos a second, each from the next network. Meanwhile 24 newcomers
// come, one every 100 ms. The target works on the oldest ClientHello.
type turnsFlood struct {
	networks int
	ip6      bool
	turns    int // a second, which the processors allow
	stays    int // ClientHellos until a peer of the flood leaves; 0: it waits for the answer
	after    int // ClientHellos before the first newcomer
	want     int // newcomers that have their turn, at least
}

// handshake is a connection of the flood or of a newcomer.
type handshake struct {
	*Conn
	newcomer, ended bool
	leaves          int
}

func (h *handshake) end() {
	if !h.ended {
		h.ended = true
		h.Leave()
		h.Uncharge()
	}
}

// run returns how many newcomers had their turn.
func (f *turnsFlood) run(t *testing.T) (served int) {
	c := newCounter(t, Limits{Connections: 8192, PerHost: 4096, Memory: 1 << 30})
	const perSecond, tries, pause = 10_000, 24, 1001
	var waiting, peers []*handshake // by age; evicted ones are still in it
	come := func(a netip.Addr, newcomer bool, leaves int) {
		h := &handshake{newcomer: newcomer, leaves: leaves}
		var err error
		if h.Conn, err = c.Admit(a, 95<<10, func(error) { h.ended = true }); err == nil {
			waiting = append(waiting, h)
			if !newcomer {
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
			if h.newcomer {
				served++
			}
		}
		work = min(work, perSecond)
	}
	return served
}

// TestTurns: ClientHellos of a flood keep no newcomer out if the networks of the flood have failed,
// if its peers do not wait, or if they are no more than the processors allow.
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
		testutil.True(t, n >= f.want, "%d of 24 newcomers had their turn: %+v", n, f)
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
