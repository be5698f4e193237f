package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

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
	testutil.True(t, r.P99 == 0.0001, "counted anew: %+v", r)
}

// TestTopWidth: no line is wider than the terminal.
func TestTopWidth(t *testing.T) {
	v := rate{
		IOPS: 9_999_999, ReadBytes: 99e9, WrittenBytes: 99e9, P50: 0.0123, P99: 17.1,
		Busy: 9, Stage: "host_data",
	}
	name := "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
	for _, width := range []int{80, 92, 93, 131, 132, 150} {
		for _, title := range []string{"HOST", "NAMESPACE"} {
			l := row(width, name, append(v.cells(title), "▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄"))
			n := utf8.RuneCountInString(l)
			testutil.True(t, n <= width, "%d columns of %d: %s", n, width, l)
			testutil.True(t, strings.Contains(l, v.Stage) == (width >= 132) && strings.Contains(l,
				"▁") == (width >= 93), "%d columns: %s", width, l)
		}
	}
}
