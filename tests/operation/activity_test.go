package operation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// TestHostMetrics: the activity of a named host stays counted after it leaves, and the names of
// others are not labels. A queue that is too small shows.
func TestHostMetrics(t *testing.T) {
	t.Parallel()
	const away = "nqn.2026-11.io.nvmf-target:away"
	s := start(t, fmt.Sprintf("hosts: [{nqn: %q}, {nqn: %q}]\n", hostNQN, away)+
		subsystem("backend: delay, latency: 20ms, of: {backend: ram, size: 16MiB}"),
		harness.Options{})
	ctx := testutil.Context(t)
	load := func(nqn string, depth, commands int) (leave func()) {
		o := options()
		o.HostNQN = nqn
		h := testutil.Value(host.Connect(ctx, s.TCP(), o))(t)
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
	leave := load(hostNQN, 4, 30)
	got := s.scrape()
	expect(t, got, map[string]float64{
		of("host_controllers", hostNQN):    1,
		of("host_controllers", away):       0,
		of("host_commands_total", hostNQN): 31, // with Connect
		of("host_commands_total", ""):      0,
	})
	full := got[of("host_nearly_full_commands_total", hostNQN)]
	rtt := got[of("host_tcp_rtt_seconds", hostNQN)]
	testutil.True(t, full >= 5 && full <= 30 && rtt > 0 && rtt <= 10,
		"%v of 31 commands found a full queue, RTT %v", full, rtt)
	leave()
	load("nqn.2026-11.io.nvmf-target:unknown", 64, 30)()
	defer load(hostNQN, 64, 30)()
	got = s.scrape()
	expect(t, got, map[string]float64{
		of("host_commands_total", hostNQN):             62,
		of("host_nearly_full_commands_total", hostNQN): full,
		of("host_nearly_full_commands_total", ""):      0,
	})
	for name := range got {
		testutil.True(t, !strings.Contains(name, ":unknown"), "there is %s", name)
	}
	busy := func(state string) float64 {
		return got[`nvmf_target_reactor_seconds_total{reactor="0",state="`+state+`"}`]
	}
	testutil.True(t, busy("busy") > 0 && busy("asleep") > 0 && busy("polling") >= 0 &&
		got[`nvmf_target_reactor_steps_total{poller="tcp",reactor="0"}`] >= 60, "%v", got)
}

// TestMetricsOfRDMA: RDMA connections are counted, and an operation that completes late, after its
// io_timeout.
func TestMetricsOfRDMA(t *testing.T) {
	t.Parallel()
	hung := backendtest.NewFaulty(harness.OpenRAM(t, 16<<20, 512))
	hung.Hold(func(io *backend.IO) bool { return io.Op == backend.OpFlush })
	s := start(t, subsystem("backend: ram, size: 16MiB"), harness.Options{
		Change: func(c *config.Config) {
			c.Subsystems[0].Namespaces[0].Timeout = 100 * time.Millisecond
		},
		Devices: map[uint32]backend.Device{1: hung},
	})
	ctx := testutil.Context(t)
	q := s.Open(s.Connect(host.RDMA{
		Provider: s.Fabric.Provider(harness.HostMachine), Addr: s.Addr(nvme.TransportRDMA),
	}, options()), 1, 32)
	testutil.MustTrue(t, hosttest.Flush(ctx, q, 1) != nil, "a flush above io_timeout succeeded")
	expect(t, s.scrape(), map[string]float64{
		`nvmf_target_connections{transport="rdma"}`:   2,
		`nvmf_target_rdma_queue_pairs{device="dev0"}`: 2,
		ofNS("namespace_commands_given_up_total"):     1,
		ofNS("namespace_orphans"):                     1,
		ofNS("namespace_ready"):                       0,
		ofNS("namespace_returns_total"):               0,
	})
	hung.Release()
	testutil.Until(t, "the operation comes back", func() bool {
		return s.scrape()[ofNS("namespace_returns_total")] > 0
	})
	expect(t, s.scrape(),
		map[string]float64{ofNS("namespace_orphans"): 0, ofNS("namespace_ready"): 1})
}

// TestTraceOfTarget: a client sees the commands of a host, and follows them. The log names the
// client.
func TestTraceOfTarget(t *testing.T) {
	s := start(t, subsystem("backend: ram, size: 16MiB"), harness.Options{})
	ctx := testutil.Context(t)
	h := s.Connect(s.TCP(), options())
	q, data := s.Open(h, 1, 32), s.Buffer(h, 4096)
	followed := make(chan observed.TraceCommand, 100)
	following, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- s.client.Trace(following, observed.TraceQuery{Queue: 1, Follow: true},
			func(q observed.TraceQueue) error {
				for _, c := range q.Commands {
					followed <- c
				}
				return nil
			})
	}()
	testutil.Must(t, errors.Join(hosttest.Write(ctx, q, 1, 64, 8, data, 0),
		hosttest.Read(ctx, q, 1, 64, 8, data)))
	testutil.MustTrue(t, hosttest.Read(ctx, q, 1, 1<<40, 8, data) != nil, "a read beyond the end")
	for _, want := range []string{"Connect", "Write", "Read", "Read"} {
		c := testutil.Receive(t, want, followed)
		if c.Command != want || c.State != "done" || c.BackendSeconds+c.ResponseSeconds+
			c.HostDataSeconds+c.WaitSeconds <= 0 || want == "Write" && (c.LBA != 64 ||
			c.Blocks != 8 || c.Length != 4096 || c.Status != "success") {
			t.Errorf("%+v, want %s", c, want)
		}
	}
	stop()
	testutil.Is(t, testutil.Receive(t, "the end", ended), context.Canceled, "")
	var all []observed.TraceQueue
	keep := func(q observed.TraceQueue) error {
		all = append(all, q)
		return nil
	}
	testutil.Must(t, s.client.Trace(ctx, observed.TraceQuery{Queue: -1}, keep))
	testutil.MustEqual(t, len(all), 2, "queues")
	last := all[0].Commands
	if all[0].QID == 0 {
		last = all[1].Commands
	}
	c := last[len(last)-1]
	testutil.True(t, c.Status == "LBA Out of Range (0/80h) DNR" && c.LBA == 1<<40, "%+v", c)
	events, err := control.GetEvents.From(ctx, s.client)
	testutil.True(t, err == nil && strings.Contains(events[len(events)-1].Message,
		"control request"), "%+v, %v", events, err)
}

// TestLatency: a client sees the stage that a slow disk and a limit make slow, and the metrics have
// the same counts. Only on a quiet machine is it sure to be the slowest stage.
func TestLatency(t *testing.T) {
	for what, dominant := range map[string]string{
		"backend: delay, latency: 5ms, of: {backend: ram, size: 16MiB}": "backend",
		"backend: ram, size: 16MiB, limits: {iops: 100, burst: 10ms}":   "wait",
	} {
		s := start(t, subsystem(what), harness.Options{})
		ctx := testutil.Context(t)
		h := s.Connect(s.TCP(), options())
		q, data := s.Open(h, 1, 32), s.Buffer(h, 4096)
		const n = 5
		var ops [2 * n]host.Op // at once: at the limit, all but the first one wait
		for i := range ops {
			if i < n {
				ops[i].Write(1, 8*uint64(i), 8, data, 0)
			} else {
				ops[i].Read(1, 8*uint64(i), 8, data)
			}
			testutil.Value(q.Submit(&ops[i]))(t)
		}
		for q.Outstanding() > 0 {
			testutil.Value(q.Poll(make([]host.Completion, len(ops))))(t)
			_ = q.Wait(time.Millisecond)
		}
		list, err := control.GetLatency.From(ctx, s.client)
		for err == nil && (len(list) != 2 || list[1].IOs < n || list[0].IOs < n) {
			// the last one is counted after its response has left
			list, err = control.GetLatency.From(ctx, s.client)
		}
		testutil.Must(t, err)
		for i, l := range list {
			sum, counted, shares := 0.0, uint64(0), map[string]float64{}
			for _, b := range l.Buckets {
				counted += b.Count
			}
			for _, stage := range l.Stages {
				sum += stage.Share
				shares[stage.Stage] = stage.Share
			}
			testutil.True(t, !testutil.Soaking() || l.Dominant == dominant,
				"%s: stage %s is not the slowest: %+v", what, dominant, l)
			largest := slices.Max(slices.Collect(maps.Values(shares)))
			testutil.True(t, l.Operation == []string{"read", "write"}[i] &&
				shares[l.Dominant] >= largest && l.Host == hostNQN &&
				l.Bytes == n*4096 && l.Errors == 0 && counted == l.IOs && sum >= 0.99 &&
				sum <= 1.01 && l.Total.MaxSeconds >= 0.005 &&
				l.Total.MaxSeconds <= (5*testutil.Patience).Seconds(), "%s: %+v", what, l)
		}
		got := s.scrape()
		if got[ofNS("namespace_latency_seconds_count", `op="read"`)] != n ||
			got[ofNS("namespace_stage_latency_seconds_sum", `op="read"`,
				`stage="`+dominant+`"`)] < n*time.Millisecond.Seconds() {
			t.Errorf("%s: %v", what, got)
		}
	}
}
