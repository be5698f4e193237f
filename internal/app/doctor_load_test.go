package app

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestUnderLoad: of a namespace with a slow device and of one at its limit the right stage is
// named; a queue that is too small shows.
func TestUnderLoad(t *testing.T) {
	socket := t.TempDir() + "/control.sock"
	c, err := Parse("test.yaml", []byte(`
listeners: [`+anyPort+`]
subsystems:
  - nqn: "`+testNQN+`"
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: delay, latency: 15ms, of: {backend: ram, size: 16MiB}}
      - {nsid: 2, backend: ram, size: 16MiB, limits: {iops: 500, burst: 10ms}}
reactors: {count: 1, memory: 16MiB}
control: {socket: `+socket+`}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, Options{Config: c})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if list := underLoad(socket); len(list) != 1 || list[0].Severity != doctor.OK {
		t.Errorf("without load: %+v", list)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	h, q := oneQueue(ctx, t, host.TCP{Addr: s.Addrs()[0].AddrPort})
	data, err := h.Map(4096)
	if err != nil {
		t.Fatal(err)
	}
	ops := make([]host.Op, q.Depth())
	for nsid := uint32(1); nsid <= 2; nsid++ {
		for range 4 / nsid * leastCommands / uint32(len(ops)) {
			for i := range ops {
				ops[i].Read(nsid, 0, 1, data[:512])
				if _, err := q.Submit(&ops[i]); err != nil {
					t.Fatal(err)
				}
			}
			for q.Outstanding() > 0 {
				if _, err := q.Poll(make([]host.Completion, len(ops))); err != nil {
					t.Fatal(err)
				}
				_ = q.Wait(time.Millisecond)
			}
		}
	}
	list := underLoad(socket)
	found := fmt.Sprint(list)
	for _, want := range []string{
		"namespace 1 of " + testNQN, "is that of stage backend", "The storage is slow",
		"namespace 2 of " + testNQN, "is that of stage wait", "They wait at a limit",
		"three quarters of their queue in use",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Log(found)
	}
	if list := underLoad(t.TempDir() + "/none"); len(list) != 1 || list[0].Severity != doctor.Note {
		t.Errorf("without a target: %+v", list)
	}
}

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
