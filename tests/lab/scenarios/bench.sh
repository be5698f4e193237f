# nvmf-target bench against our target and against the kernel's: it verifies the data that it has
# written, reads and writes at random, and notices that a target has gone.
# variants: rxe siw tcp
# covers: nvme/host internal/bench internal/capture internal/load internal/histogram internal/cli
# limit: 240
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
lab_up
bench() { # ARGUMENT...: over the transport of the variant
  "$TARGET_BIN" bench --transport "$TRTYPE" --address "$at" --subsystem "$NQN" --timeout 60s "$@"
}
case $FAMILY in 4) at=$ADDR:$PORT ;; 6) at=[$ADDR]:$PORT ;; esac
for TARGET in ours nvmet; do
  target_start
  bench --rw write >/run/bench.log 2>&1 && fail "overwrites without being told to"
  grep -q "would overwrite namespace 1 of $NQN" /run/bench.log || fail "$(cat /run/bench.log)"
  bench --rw randwrite --bs 16k --iodepth 16 --numjobs 2 --verify --passes 2 --destroy-data \
    >/run/bench.log 2>&1 || fail "verification: $(cat /run/bench.log)"
  bench --rw randrw --iodepth 16 --runtime 2s --destroy-data --json /run/$TARGET.json \
    >/run/bench.log 2>&1 || fail "random I/O: $(cat /run/bench.log)"
  say "$TARGET: $(grep -E '^randrw' /run/bench.log | tr '\n' ';')"
  [ $TARGET = nvmet ] || target_stop
done
"$TARGET_BIN" bench compare /run/ours.json /run/nvmet.json >/run/bench.log || fail "compare"
grep -E 'IOPS|p99 ' /run/bench.log
# Time enough for a busy machine: the target goes once bench reads.
bench --rw randread --runtime 600s >/run/bench.log 2>&1 &
pid=$! DEV=$(null_node lab-ram1)
io_mark; wait_for 20 io_moved 100
target_kill
wait $pid && fail "does not notice that the target has gone"
grep -q 'NOT COMPLETE' /run/bench.log && grep -q '^randread reads' /run/bench.log ||
  fail "no report of what was reached: $(cat /run/bench.log)"
# nvmet over siw reports the end of a connection as an event of its queue pair.
klog_check 'nvmet_rdma: received IB QP event'
