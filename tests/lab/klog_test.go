package lab

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestKernelLogCheck feeds lines of a kernel log to klog_check of lib-check.sh. Complaints of the
// kernel about time come from the machine, all others fail a scenario.
func TestKernelLogCheck(t *testing.T) {
	for _, tc := range []struct {
		line  string
		fails bool
	}{
		{"hrtimer: interrupt took 12889761 ns", false},
		{"clocksource: Long readout interval, skipping watchdog check", false},
		{"clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable", false},
		{"tsc: Marking TSC unstable due to clocksource watchdog", false},
		{"TSC found unstable after boot, most likely due to broken BIOS", false},
		{"perf: interrupt took too long (2512 > 2500), lowering kernel.perf_event_max", false},
		{"sched: DL replenish lagged too much", false},
		{"workqueue: nvme_tcp_io_work [nvme_tcp] hogged CPU for >10000us 4 times", false},
		{"iwpm_register_pid: Unable to send a nlmsg (client = 2)", false},
		{"nvme nvme0: long keepalive RTT (1998 ms)", false},
		{"block device autoloading is deprecated and will be removed.", false},

		{"WARNING: CPU: 0 PID: 12 at drivers/nvme/host/core.c:1 nvme_x+0x1/0x2", true},
		{"BUG: kernel NULL pointer dereference, address: 0000000000000008", true},
		{"watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [kworker/0:1H:35]", true},
		{"Oops: 0000 [#1] PREEMPT SMP NOPTI", true},
		{"INFO: task nvme:123 blocked for more than 120 seconds.", true},
		{"rcu: INFO: rcu_preempt self-detected stall on CPU", true},
		{"nvme nvme0: I/O tag 5 (5005) opcode 0x1 (I/O Cmd) QID 1 timeout", true},
		{"nvme nvme0: long keepalive RTT (2500 ms)", true},
		{"I/O error, dev nvme0n1, sector 8 op 0x0:(READ) flags 0x0", true},
		{"a line of a driver that has complained about hrtimer: latency", true},
		{"hrtimer: BUG in a callback", true},
		{"workqueue: WQ_MEM_RECLAIM nvme-wq is flushing !WQ_MEM_RECLAIM events", true},
	} {
		for _, vm := range []string{"uml", "qemu"} {
			script := `set -eu; . ./lib-check.sh
				fail() { echo "FAIL: $*"; exit 1; }
				KLOG_MARK='lab: mark 1'
				dmesg() {
					printf '[ %s\n' '   1.5] WARNING: before' '  12.1] lab: mark 1' "  13.2] $LINE"
				}
				klog_check`
			cmd := exec.Command("bash", "-c", script)
			cmd.Env = append(cmd.Environ(), "LAB_VM="+vm, "LINE="+tc.line)
			out, err := cmd.CombinedOutput()
			want := tc.fails && (vm == "uml" || !strings.Contains(tc.line, "keepalive RTT"))
			if failed := err != nil; failed != want {
				t.Errorf("%s, %q: failed %t, want %t\n%s", vm, tc.line, failed, want, out)
			}
		}
	}
}

// TestLogTexts: every text that a scenario expects in the log of the target is in the source. This
// matters most for texts that must be absent, since such a check would pass forever after a change.
// A scenario waits for a text (logged), because another goroutine writes the log.
func TestLogTexts(t *testing.T) {
	var source strings.Builder
	collect := func(dir, suffix string, add func(name string, text []byte)) {
		testutil.Must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, suffix) {
				return err
			}
			text, err := os.ReadFile(name)
			add(name, text)
			return err
		}))
	}
	for _, dir := range []string{"backend", "fabric", "internal", "nvme"} {
		collect("../../"+dir, ".go", func(name string, text []byte) {
			if !strings.HasSuffix(name, "_test.go") {
				source.Write(text)
			}
		})
	}
	// Literals broken into several lines are one text.
	code := regexp.MustCompile(`" \+\s*"`).ReplaceAllString(source.String(), "")
	expectation := regexp.MustCompile(`\blog(?:ged|_has|_count) "([^"$]+)"`)
	now := regexp.MustCompile(`(?m)^(?:.*[^!] )?log_has [^&\n]*(?:\\\n.*)?\|\| fail`)
	found := 0
	collect(".", ".sh", func(name string, text []byte) {
		for _, m := range now.FindAll(text, -1) {
			t.Errorf("%s: %s: the line may come later: use logged", name, m)
		}
		for _, m := range expectation.FindAllSubmatch(text, -1) {
			found++
			if want := string(m[1]); !strings.Contains(code, want) {
				t.Errorf("%s looks for %q in the log, which is not in the source", name, want)
			}
		}
	})
	testutil.True(t, found >= 20, "only %d texts found", found)
}
