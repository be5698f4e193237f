# Memory with 1 and with 16 connected I/O queues of depth 128; with 16 idle ones the target hardly ever wakes up.
# variants: rxe siw tcp
# cpus: 4
# alone: it measures
# limit: 120
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
say "RSS with 0 I/O queues: $(target_rss) KiB"
host_connect --nr-io-queues=1 --queue-size=128
fio_run one --rw=randread --bs=4k --iodepth=128 --size=64M --io_size=64M
say "RSS with 1 I/O queue of depth 128: $(target_rss) KiB"
host_disconnect
queues() {
  local c n=0
  for c in $(controllers); do n=$((n + $(cat "/sys/class/nvme/$c/queue_count") - 1)); done
  echo $n
}
# Linux makes at most one queue per CPU and controller.
host_connect --nr-io-queues=4 --queue-size=128
while [ "$(queues)" -lt 16 ]; do host_connect_again nr_io_queues=4,queue_size=128; done
for p in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >"$p"; done
fio_run sixteen --rw=randread --bs=4k --iodepth=128 --size=64M --io_size=64M --numjobs=4
say "RSS with 16 I/O queues of depth 128: $(target_rss) KiB, $(target_fds) descriptors, $(target_threads) threads"
[ "$TARGET" = nvmet ] && skip "the kernel's target has no process to measure"
# Keep-alives go on. What may be judged here is how often the target wakes up: this kernel charges a process with what its own system calls,
# interrupts and thread switches cost on the machine below, which is a hundred times of what they cost elsewhere, so CPU time is only
# shown. tests/e2e (TestIdle) holds the same 16 queues to less than 1 % of a CPU.
best=1000
for i in 1 2 3; do
  before=$(target_cpu) switches=$(target_switches); sleep 10
  used=$(($(target_cpu) - before)) switches=$((($(target_switches) - switches) / 10))
  say "idle with 16 I/O queues, 10 s: $switches context switches a second, CPU as charged here $((used / 10)).$((used % 10)) %"
  [ $switches -ge $best ] || best=$switches
  [ $best -ge 100 ] || break
done
[ $best -lt 100 ] || fail "an idle target wakes up too often: $best context switches a second, at most 100 are expected"
host_disconnect
