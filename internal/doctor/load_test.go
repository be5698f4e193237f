package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// looks returns two samples, 5 s apart, for a test to fill.
func looks() (before, now *Sample) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	return &Sample{Time: at}, &Sample{Time: at.Add(5 * time.Second)}
}

// counted returns the latency of commands of a host that spent three quarters of it in a stage.
func counted(host string, nsid uint32, stage string, took map[float64]uint64) observed.Latency {
	l := observed.Latency{Host: host, Subsystem: "nqn.sub", NSID: nsid, Operation: "read"}
	sum := 0.0
	for seconds, n := range took {
		l.IOs += n
		sum += seconds * float64(n)
		l.Buckets = append(l.Buckets, observed.LatencyBucket{NS: int64(seconds * 1e9), Count: n})
	}
	for s := range fabric.Stages {
		share := 0.25 / (float64(fabric.Stages) - 1)
		if s.String() == stage {
			share = 0.75
		}
		l.Stages = append(l.Stages, observed.LatencyStage{
			Stage: s.String(), MeanSeconds: share * sum / max(float64(l.IOs), 1),
		})
	}
	return l
}

// TestSlowCommands: the slowest kinds of commands are reported, and no fast ones; a few commands
// only if they are very slow; and nothing from before the samples.
func TestSlowCommands(t *testing.T) {
	before, now := looks()
	add := func(list *[]observed.Latency, nsid uint32, n uint64, seconds float64) {
		*list = append(*list, counted("nqn.host", nsid, "backend", map[float64]uint64{seconds: n}))
	}
	add(&now.Latencies, 1, 99, verySlowSeconds*0.99)
	add(&now.Latencies, 2, 1e6, slowSeconds*0.99)
	add(&before.Latencies, 3, 1e6, 6) // it was slow
	now.Latencies = append(now.Latencies, counted("nqn.host", 3, "backend", map[float64]uint64{
		6: 1e6, 0.001: 1000,
	}))
	if list := Load(before, now); list != nil {
		t.Errorf("few, fast, or over: %+v", list)
	}
	add(&now.Latencies, 4, 4, 6)
	expect(t, Load(before, now), "note: the slowest of 4 commands (read) of nqn.host for "+
		"namespace 4 of nqn.sub took 6000 ms or more in the last 5 s; 75 % of the time was that "+
		"of stage backend | iostat")
	for i := range uint32(2 * mostSlow) {
		add(&now.Latencies, 100+i, leastCommands, slowSeconds*float64(1+i))
	}
	list := Load(before, now)
	if len(list) != mostSlow || !strings.Contains(list[1].Found, "1 of 100 commands (read) of "+
		"nqn.host for namespace 119 of nqn.sub took 200 ms or more") {
		t.Errorf("%+v", list)
	}
	for s := range fabric.Stages {
		if _, ok := stageAdvice[s.String()]; !ok {
			t.Errorf("nothing is said of stage %v", s)
		}
	}
}

// TestCountedAmongOthers: earlier counts of a host, or of the other hosts, are not reported again
// when the host is now counted among the others. Counters that restart together are.
func TestCountedAmongOthers(t *testing.T) {
	slow := func(host string, n uint64) observed.Latency {
		return counted(host, 1, "backend", map[float64]uint64{2: n})
	}
	for name, tc := range map[string]struct {
		before, now []observed.Latency
		want        string
	}{
		"all of it": {
			[]observed.Latency{slow("a", 1000), slow("", 500)},
			[]observed.Latency{slow("", 1500)},
			"",
		},
		"that of one reactor": {
			[]observed.Latency{slow("a", 1000), slow("", 500)},
			[]observed.Latency{slow("a", 400), slow("", 1100)},
			"",
		},
		"and more": {
			[]observed.Latency{slow("a", 1000)},
			[]observed.Latency{slow("a", 400), slow("", 607)},
			"7 commands (read) of other hosts",
		},
		"restarted": {
			[]observed.Latency{slow("", 1000)},
			[]observed.Latency{slow("", 3)},
			"3 commands (read) of other hosts",
		},
	} {
		before, now := looks()
		before.Latencies, now.Latencies = tc.before, tc.now
		list := Load(before, now)
		testutil.True(t, len(list) <= 1 && (tc.want == "") == (len(list) == 0) &&
			strings.Contains(fmt.Sprint(list), tc.want), "%s: %+v, want %q", name, list, tc.want)
	}
}

// TestWaits: waiting commands are explained by the limits at which they wait, as far as these apply
// to them, or by memory.
func TestWaits(t *testing.T) {
	at := func(seconds float64) *observed.Limits { return &observed.Limits{WaitSeconds: seconds} }
	for name, tc := range map[string]struct {
		host, subsystem, namespace, elsewhere float64 // waits at their limits
		memory                                int
		want                                  string
	}{
		"host":      {host: 150, namespace: 10, elsewhere: 900, want: "limits of host nqn.host."},
		"subsystem": {subsystem: 150, elsewhere: 900, want: "limits of subsystem nqn.sub."},
		"namespace": {subsystem: 10, namespace: 150, want: "limits of namespace 1 of nqn.sub."},
		"memory": {
			namespace: 10, memory: 7, want: "for data memory: 7 of one reactor at once. | " +
				"reactors.memory",
		},
		"no limits": {elsewhere: 900, want: "for data memory. | reactors.memory"},
	} {
		before, now := looks()
		for s, part := range map[*Sample]float64{before: 1, now: 2} {
			s.Hosts = []observed.Host{{NQN: "nqn.host", Limits: at(tc.host * part)}, {NQN: "none"}}
			s.Subsystems = []observed.Subsystem{{NQN: "nqn.sub", Limits: at(tc.subsystem * part)}}
			s.Namespaces = []observed.Namespace{
				{Subsystem: "nqn.sub", NSID: 1, Limits: at(tc.namespace * part)},
				{Subsystem: "nqn.sub", NSID: 2, Limits: at(tc.elsewhere * part)},
			}
			s.Reactors = []observed.Reactor{{}, {WaitingCommands: tc.memory}}
		}
		// 200 s, of which 150 s in stage wait
		now.Latencies = []observed.Latency{
			counted("nqn.host", 1, "wait", map[float64]uint64{0.2: 1000}),
		}
		list := Load(before, now)
		why, fix, _ := strings.Cut(tc.want, " | ")
		testutil.True(t, len(list) == 1 && strings.HasSuffix(list[0].Why, why) &&
			strings.Contains(list[0].Fix, fix) && list[0].Fix != "", "%s: %+v, want %q", name, list,
			tc.want)
	}
}

func remote(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv4Unspecified(), port) }

// TestStalled: commands that do not complete are in no histogram.
func TestStalled(t *testing.T) {
	before, now := looks()
	before.Connections = []observed.Connection{
		{Host: "admin", Remote: remote(1), Commands: 7, InFlight: 1},
		{Host: "stuck", Remote: remote(2), QID: 1, Commands: 7, InFlight: 5},
		{Host: "stuck", Remote: remote(3), QID: 2, Commands: 7, InFlight: 1},
		{Host: "busy", Remote: remote(4), QID: 1, Commands: 7, InFlight: 4},
		{Host: "idle", Remote: remote(5), QID: 1, Commands: 7},
	}
	now.Connections = []observed.Connection{
		{Host: "admin", Remote: remote(1), Commands: 7, InFlight: 1},
		{Host: "stuck", Remote: remote(2), QID: 1, Commands: 7, InFlight: 4},
		{Host: "stuck", Remote: remote(3), QID: 2, Commands: 7, InFlight: 1},
		{Host: "busy", Remote: remote(4), QID: 1, Commands: 8, InFlight: 4},
		{Host: "idle", Remote: remote(5), QID: 1, Commands: 7},
		{Host: "new", Remote: remote(6), QID: 1, Commands: 1, InFlight: 1},
	}
	expect(t, Load(before, now),
		"note: 5 commands of stuck have not been completed in the last 5 s | nvmf-target trace")
}

// TestHostFindings: retransmitted packets count by their share, over all queues of a host, since
// the last look. The name of a host does not read as part of a sentence.
func TestHostFindings(t *testing.T) {
	before, now := looks()
	before.Connections = []observed.Connection{
		{Host: "over", QID: 1, Remote: remote(1), Retransmits: 100, ReadBytes: 1000 * packetSize},
		{Host: "over", QID: 2, Remote: remote(2), Commands: 200, NearlyFull: 200, Retransmits: 50},
	}
	now.Connections = []observed.Connection{
		{Host: "over", QID: 1, Remote: remote(1), Retransmits: 100, ReadBytes: 1000 * packetSize},
		{Host: "over", QID: 2, Remote: remote(2), Commands: 400, NearlyFull: 200, Retransmits: 50},
		{Host: "lossy", QID: 1, Remote: remote(3), Retransmits: 6, ReadBytes: 5000 * packetSize},
		{Host: "lossy", QID: 2, Remote: remote(4), Retransmits: 6, ReadBytes: 5000 * packetSize},
		{Host: "few", QID: 1, Remote: remote(5), Retransmits: 4, ReadBytes: 100 * packetSize},
		{Host: "much", QID: 1, Remote: remote(6), Retransmits: 999, ReadBytes: 1e6 * packetSize},
		{Host: "admin", Remote: remote(7), Commands: 200, NearlyFull: 200},
		{Host: "deep", QID: 1, Remote: remote(8), Commands: 200, NearlyFull: 19},
		{
			Host: "nqn. Fix: \x1b[2J", QID: 1, Remote: remote(9), Commands: 200, NearlyFull: 20,
			Depth: 32,
		},
	}
	expect(t, Load(before, now),
		"note: the target has sent 12 packets to lossy again in the last 5 s, of about 10000",
		`note: 20 of 200 commands of "nqn. Fix: \x1b[2J" found at least three quarters of their `+
			"queue in use in the last 5 s (32 entries)")
	if now.Connections[0].Retransmits = 99; len(Load(before, now)) != 2 {
		t.Errorf("a counter that began again: %+v", Load(before, now))
	}
}

// TestPorts: counters of lost and marked packets are reported while they rise.
func TestPorts(t *testing.T) {
	port := func(lost, timeouts, marked, reads uint64) []observed.PortCounter {
		return []observed.PortCounter{
			{Device: "mlx5_0", Port: "1", Counter: "out_of_sequence", Value: lost},
			{Device: "mlx5_0", Port: "1", Counter: "local_ack_timeout_err", Value: timeouts},
			{Device: "mlx5_0", Port: "1", Counter: "np_cnp_sent", Value: marked},
			{Device: "mlx5_0", Port: "1", Counter: "rx_read_requests", Value: reads},
		}
	}
	before, now := looks()
	for _, tc := range []struct {
		before, now []observed.PortCounter
		want        []string
	}{
		{port(1e6, 1e6, 1e6, 0), port(1e6+5, 1e6+4, 1e6+499, 1e6), nil},
		{nil, port(1e6, 1e6, 1e6, 1e6), nil},
		{port(1e6, 1e6, 1e6, 1e6), port(0, 0, 0, 0), nil},
		{port(1e6, 1e6, 1e6, 0), port(1e6+7, 1e6+3, 1e6, 0), []string{
			"note: port 1 of mlx5_0: packets were lost or sent again in the last 5 s: " +
				"out_of_sequence=7 local_ack_timeout_err=3 | rdma statistic show",
		}},
		{port(0, 0, 0, 0), port(0, 0, 500, 0), []string{
			"note: port 1 of mlx5_0: packets were marked in the last 5 s: np_cnp_sent=500 | ECN",
		}},
	} {
		before.Ports, now.Ports = tc.before, tc.now
		expect(t, Load(before, now), tc.want...)
	}
	// a few are reported only while connections end
	hosts := []observed.Host{
		{NQN: "a", CNTLID: 1, Transport: "rdma"},
		{NQN: "a", CNTLID: 2, Transport: "tcp"},
		{NQN: "a", CNTLID: 3, Transport: "rdma", Discovery: true},
		{NQN: "b", CNTLID: 1, Transport: "rdma"},
		{NQN: "b", CNTLID: 4, Transport: "rdma"},
	}
	before.Ports = []observed.PortCounter{
		{Device: "rxe0", Port: "1", Counter: "completer_retry_err", Value: 7},
	}
	now.Ports = []observed.PortCounter{
		{Device: "rxe0", Port: "1", Counter: "completer_retry_err", Value: 8},
	}
	before.Hosts, now.Hosts = hosts, hosts
	expect(t, Load(before, now))
	now.Hosts = hosts[3:4]
	expect(t, Load(before, now), "note: port 1 of rxe0: packets were lost or sent again in the "+
		"last 5 s: completer_retry_err=1; RDMA controllers that have ended meanwhile: 2 | "+
		"rdma statistic show")
	now.Ports = before.Ports
	expect(t, Load(before, now))
}

// TestWithin: the time is rounded.
func TestWithin(t *testing.T) {
	for seconds, want := range map[float64]int{0.2: 1, 2: 2, 9.9: 10, 59.9: 60, 38: 30} {
		before, now := looks()
		now.Time = before.Time.Add(time.Duration(seconds * 1e9))
		if p := (&period{before, now}); p.within() != fmt.Sprintf("in the last %d s", want) {
			t.Errorf("%v: %s", seconds, p.within())
		}
	}
}

// TestLostHandshakes: peers that have lately begun RDMA connections and not confirmed them are
// findings, few of many. Other refusals and earlier ones are not.
func TestLostHandshakes(t *testing.T) {
	_, s := looks()
	refusal := func(message string, age time.Duration, remote string) {
		s.Refusals = append(s.Refusals, observed.Refusal{
			Message: message, Last: s.Time.Add(-age), Remote: remote, Count: 3, Hint: "look there",
			Attributes: []observed.Attribute{
				{Key: "local", Value: "10.0.0.1:4420"}, {Key: "device", Value: "rxe0"},
			},
		})
	}
	refusal("RDMA connection rejected", 0, "10.0.0.2:1")
	refusal(event.RDMANotCompleted.Message, handshakeAge+time.Second, "10.0.0.2:1")
	testutil.Equal(t, len(handshakes(s)), 0, "findings")
	refusal(event.RDMANotCompleted.Message, handshakeAge, "10.0.0.3:1")
	expect(t, handshakes(s), "warning: 10.0.0.3:1 at 10.0.0.1:4420: the peer begins an RDMA "+
		"connection and does not confirm it, 3 times (device: rxe0)")
	for range 2 * mostHandshakes {
		refusal(event.RDMANotCompleted.Message, 0, "10.0.0.4:1")
	}
	testutil.Equal(t, len(handshakes(s)), mostHandshakes, "findings of many")
}

// TestGateways: settings that differ between gateways are warnings.
func TestGateways(t *testing.T) {
	s := &Sample{Groups: []observed.Group{
		{ANAGroup: 1, Pool: "p", Differences: []string{"x", "y"}},
		{ANAGroup: 2, Pool: "p", Gateways: make([]observed.Gateway, 2)},
	}}
	expect(t, gateways(s), "warning: ANA group 1 of the pool p: x",
		"warning: ANA group 1 of the pool p: y",
		"ok: ANA group 2 of the pool p: 2 gateways, no differences known")
}
