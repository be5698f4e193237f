package lab

import (
	"os/exec"
	"strings"
	"testing"
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
