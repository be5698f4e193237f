package doctor

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// TestSlowCommands: of the slowest kinds of commands is told, and of none that are fast or few.
func TestSlowCommands(t *testing.T) {
	kind := func(nsid uint32, n uint64, p99 float64) control.Latency {
		return control.Latency{
			NSID: nsid, IOs: n, Dominant: "backend", Total: control.LatencyStage{P99Seconds: p99},
			Stages: []control.LatencyStage{{Stage: "wait"}, {Stage: "backend", Share: 0.75}},
		}
	}
	counted := []control.Latency{kind(1, 99, 1), kind(2, 1e6, slowSeconds*0.99)}
	if list := slowCommands(counted); list != nil {
		t.Errorf("few, or fast: %+v", list)
	}
	for i := range uint32(2 * mostSlow) {
		counted = append(counted, kind(100+i, leastCommands, slowSeconds*float64(1+i)))
	}
	list := slowCommands(counted)
	if len(list) != mostSlow || !strings.Contains(list[0].Found, "namespace 119 ") ||
		!strings.Contains(list[0].Found, "other hosts") ||
		!strings.Contains(list[0].Found, "takes 200 ms or more; 75 % of the time") {
		t.Errorf("%+v", list)
	}
}

// TestHostFindings: packets that were sent again count by their share, and over all queues of a
// host.
func TestHostFindings(t *testing.T) {
	list := hostFindings([]control.Connection{
		{Host: "lossy", QID: 1, Retransmits: 6, ReadBytes: 5000 * packetSize},
		{Host: "lossy", QID: 2, Retransmits: 6, ReadBytes: 5000 * packetSize},
		{Host: "few", QID: 1, Retransmits: 9, ReadBytes: 100 * packetSize},
		{Host: "much", QID: 1, Retransmits: 999, ReadBytes: 1e6 * packetSize},
		{Host: "admin", Commands: 200, NearlyFull: 200},
		{Host: "deep", QID: 1, Commands: 200, NearlyFull: 19},
		{Host: "small", QID: 1, Commands: 200, NearlyFull: 20, Depth: 32},
	})
	if len(list) != 2 || list[0].Check != "network" || list[1].Check != "queues" ||
		!strings.Contains(list[0].Found, "12 packets to lossy again, of about 10000") ||
		!strings.Contains(list[1].Found, "20 of 200 commands of small") {
		t.Errorf("%+v", list)
	}
	for s := range fabric.Stages {
		if stageAdvice[s.String()].why == "" {
			t.Errorf("nothing is said of stage %v", s)
		}
	}
}
