package app

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// TestListenersAtRandom: addresses, reloads that succeed and fail, and drains change concurrently.
// In the end the ports are in the intended state, and everything that shows them agrees.
func TestListenersAtRandom(t *testing.T) {
	t.Parallel()
	port := testutil.FreePort(t)
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	base := at("127.0.8.1", port)
	choice := []string{
		at("127.0.9.0/24", port), at("127.0.9.2", port), at("eth0", port), at("eth1", port),
		at("127.0.9.0/30", port),
		at("127.0.9.1", port),
	}
	machine := []string{
		"eth0 127.0.9.1", "eth0 127.0.9.2", "eth1 127.0.9.3", "eth1 127.0.9.2",
		"eth1 127.0.9.4 down", "eth2 127.0.9.5",
	}
	pick := func(list []string) (out []string) {
		for _, s := range list {
			if rand.IntN(2) == 0 {
				out = append(out, s)
			}
		}
		return out
	}
	l, n := healing(t, base, "lo 127.0.8.1")
	subsystems := sub(anyHosts, inRAM)
	var wg sync.WaitGroup
	rounds := testutil.Rounds(100, 2000)
	loop := func(times int, fn func()) {
		wg.Go(func() {
			for range times {
				fn()
			}
		})
	}
	loop(rounds, func() {
		text := strings.Join(append(pick(choice), base), ", ")
		if rand.IntN(2) == 0 {
			text += fmt.Sprintf(", {transport: tcp, address: 127.0.0.1, port: %d, "+
				"on_unavailable: fail}", taken)
		}
		_, err := l.s.Apply(l.parse(text, subsystems))
		testutil.True(t, err == nil || !strings.Contains(err.Error(), "undone"), "%v", err)
	})
	loop(3*rounds, func() {
		which := control.ListenerID{All: rand.IntN(4) == 0}
		if !which.All {
			which.Listener = strconv.Itoa(1 + rand.IntN(9))
		}
		_, _ = l.s.engine.Drain(which, rand.IntN(2) == 0)
	})
	loop(10*rounds, func() { l.s.listeners.States(); l.s.status() })
	for range rounds {
		n.Set(append(pick(machine), "lo 127.0.8.1")...)
		was := n.Reads()
		testutil.Until(t, "the addresses are looked at, or not yet", func() bool {
			return n.Reads() > was || rand.IntN(8) == 0
		})
	}
	wg.Wait()

	testutil.Value(l.s.engine.Drain(control.ListenerID{All: true}, false))(t)
	n.Set("lo 127.0.8.1", "eth0 127.0.9.1", "eth0 127.0.9.2", "eth1 127.0.9.3")
	text := strings.Join([]string{base, choice[0], choice[5]}, ", ")
	l.apply(text, subsystems)
	addr := func(i int) string { return fmt.Sprintf("127.0.9.%d:%d up", i, port) }
	testutil.Until(t, "there are four ports", func() bool {
		got := ports(l.s)
		return strings.Count(got, "\n") == 3 && strings.Contains(got, "127.0.8.1") &&
			strings.Contains(got, addr(1)) && strings.Contains(got, addr(2)) &&
			strings.Contains(got, addr(3))
	})
	l.agrees()
}

// agrees checks that ports, discovery log and state file have the same.
func (l *live) agrees() {
	l.t.Helper()
	states, inLog := l.s.listeners.States(), l.s.target.Ports()
	for _, p := range states {
		name := p.Transport + " " + p.Address
		ids, err := l.s.state.Ports([]string{name})
		shown := slices.ContainsFunc(inLog, func(o discovery.Port) bool {
			return o.ID == p.PortID && o.Addr.String() == name
		})
		testutil.True(l.t, err == nil && p.State == "up" && shown && ids[name] == p.PortID,
			"port %+v, discovery log %v, stored IDs %v, %v", p, inLog, ids, err)
	}
	if n := l.s.listeners.CountDrained(); len(inLog) != len(states) || n != 0 {
		l.t.Errorf("discovery log %v, %d ports are drained", inLog, n)
	}
}
