package app

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestHostMetrics: the activity of a named host stays counted after it leaves, and the names of
// others are not labels. A queue that is too small shows.
func TestHostMetrics(t *testing.T) {
	t.Parallel()
	me := hostOptions(testNQN).HostNQN
	c := parsed(t, `
listeners: [`+anyPort+`]
hosts: [{nqn: "`+me+`"}, {nqn: "nqn.2026-11.io.nvmf-target:away"}]
subsystems:
  - nqn: "`+testNQN+`"
    allow_any_host: true
    namespaces: [{nsid: 1, backend: delay, latency: 20ms, of: {backend: ram, size: 16MiB}}]
reactors: {count: 1, memory: 16MiB}
metrics: {listen: "127.0.0.1:0"}
`)
	s := started(t, Options{Config: c})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	load := func(nqn string, depth, commands int) (leave func()) {
		o := hostOptions(testNQN)
		o.HostNQN = nqn
		h := testutil.Value(host.Connect(ctx, host.TCP{Addr: s.Addrs()[0].AddrPort}, o))(t)
		q := testutil.Value(h.OpenQueue(ctx, 1, depth))(t)
		for done := 0; done < commands; {
			for q.Free() > 0 && q.Outstanding()+done < commands {
				var flush host.Op
				flush.Flush(1)
				testutil.Value(q.Submit(&flush))(t)
			}
			n, err := q.Poll(make([]host.Completion, depth))
			if done += n; err != nil || ctx.Err() != nil {
				t.Fatal(err, ctx.Err())
			}
		}
		return func() { _ = q.Close(); h.Close() }
	}
	of := func(name, nqn string) string { return fmt.Sprintf("nvmf_target_%s{host=%q}", name, nqn) }
	leave := load(me, 4, 30)
	got := scrape(t, s)
	expect(t, got, map[string]float64{
		of("host_controllers", me):                                1,
		of("host_controllers", "nqn.2026-11.io.nvmf-target:away"): 0,
		of("host_commands_total", me):                             31, // with Connect
		of("host_commands_total", ""):                             0,
	})
	full := got[of("host_nearly_full_commands_total", me)]
	if rtt := got[of("host_tcp_rtt_seconds", me)]; full < 5 || full > 30 || rtt <= 0 || rtt > 10 {
		t.Errorf("%v of 31 commands found a full queue, RTT %v", full, rtt)
	}
	leave()
	load("nqn.2026-11.io.nvmf-target:unknown", 64, 30)()
	defer load(me, 64, 30)()
	got = scrape(t, s)
	expect(t, got, map[string]float64{
		of("host_commands_total", me):             62,
		of("host_nearly_full_commands_total", me): full,
		of("host_nearly_full_commands_total", ""): 0,
	})
	for name := range got {
		testutil.True(t, !strings.Contains(name, ":unknown"), "there is %s", name)
	}
	busy := func(state string) float64 {
		return got[`nvmf_target_reactor_seconds_total{reactor="0",state="`+state+`"}`]
	}
	if busy("busy") <= 0 || busy("asleep") <= 0 || busy("polling") < 0 ||
		got[`nvmf_target_reactor_steps_total{poller="tcp",reactor="0"}`] < 60 {
		t.Error(got)
	}
}

// TestEndingConnection: the counters of a connection are not counted again after the kernel has
// forgotten it, and a discovery controller is not a path.
func TestEndingConnection(t *testing.T) {
	var totals hostTotals
	c := observed.Connection{
		Host: "a", QID: 1, Commands: 1000, LinkKnown: true, Retransmits: 3,
	}
	discovery := observed.Connection{
		Host: "a", Discovery: true, Remote: netip.MustParseAddrPort("127.0.0.1:1"),
	}
	look := func() metrics.Host {
		hosts := map[string]*metrics.Host{"": {}, "a": {}}
		totals.update([]observed.Connection{c, discovery}, hosts)
		return *hosts["a"]
	}
	first := look()
	c.Commands, c.LinkKnown, c.Retransmits = 1001, false, 0
	last := look()
	testutil.True(t, first.Commands == 1000 && last.Commands == 1001 && last.Retransmits == 3,
		"%+v, then %+v", first, last)
	testutil.Equal(t, last.Controllers, 0, "paths")
}
