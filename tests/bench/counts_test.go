package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestMain makes a process started by a test a target.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "own-target" {
		exit(ownTargetMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestOwnTargetCounts: a target in this program reports the bytes it has allocated.
func TestOwnTargetCounts(t *testing.T) {
	s := testutil.Value(
		startTarget(ownCPU(t), t.TempDir(), "", os.Args[0], "own-target", "counting"))(t)
	defer func() {
		if err := s.stop(); err != nil || !strings.Contains(s.log.String(), "reactors started") {
			t.Errorf("stop: %v, log: %s", err, s.log.String())
		}
	}()
	before, err := s.runTime()
	testutil.True(t, err == nil && before > 0, "%v of CPU time: %v", before, err)
	w := countedWorkloads()[0]
	allocated, copied, ops, err := count(s, w, 200*time.Millisecond)
	_, counts := mem.Copied() // the target is built like this program
	testutil.True(t, err == nil && ops != 0 && allocated >= 0 && (copied == 0 || counts),
		"%v bytes allocated and %v copied in %v I/Os: %v", allocated, copied, ops, err)
	total, _, err := s.counters()
	testutil.True(t, err == nil && total >= 1<<10, "%v bytes since the start: %v", total, err)
	if after, err := s.runTime(); err != nil || after <= before {
		t.Errorf("%v of CPU time, before the load %v: %v", after, before, err)
	}
}

// ownCPU returns a CPU that this process may use.
func ownCPU(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	testutil.Must(t, unix.SchedGetaffinity(0, &set))
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	return cpu
}
