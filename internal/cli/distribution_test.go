package cli

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestDistribution: quantiles are of the commands between two snapshots, of all operations and
// hosts of a namespace.
func TestDistribution(t *testing.T) {
	latency := func(host string, fast, slow uint64) observed.Latency {
		return observed.Latency{
			Host: host, Subsystem: "s", NSID: 1,
			Buckets: []observed.LatencyBucket{
				{NS: 100_000, Count: fast}, {NS: 9_000_000, Count: slow},
			},
			IOs: fast + slow, Stages: []observed.LatencyStage{
				{Stage: "wait", MeanSeconds: 1e-6 * float64(fast)},
				{Stage: "backend", MeanSeconds: 1e-6 * float64(slow)},
			},
		}
	}
	old := snapshot{at: at, latency: distributions([]observed.Latency{
		latency("a", 1_000_000, 0), latency("b", 0, 1_000_000),
	})}
	now := snapshot{
		at: at.Add(1), namespaces: []observed.Namespace{{Subsystem: "s", NSID: 1}},
		latency: distributions([]observed.Latency{
			latency("a", 1_000_090, 0), latency("b", 0, 1_000_010),
		}),
	}
	r := between(&old, &now).Namespaces[0]
	testutil.True(t, r.P50 == 0.0001 && r.P99 == 0.009 && r.Stage == "wait", "%+v", r)
	r = between(&now, &now).Namespaces[0]
	testutil.True(t, r.P50 == 0 && r.cells("NAMESPACE")[5] == "-" && r.Stage == "",
		"without commands: %+v", r)
	now.latency = distributions([]observed.Latency{latency("a", 3, 0)}) // restarted
	r = between(&old, &now).Namespaces[0]
	testutil.True(t, r.P99 == 0.0001, "counted again: %+v", r)
}
