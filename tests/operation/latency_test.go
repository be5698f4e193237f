package operation

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

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
