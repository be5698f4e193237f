# The Go initiator (nvme/host) over rdma-core: sizes up to MDTS, lists of data blocks, verified
# mixed I/O at depths 128 and 1024 and on 16 queues, fused pairs, resets; then the same with a
# shared receive queue that has fewer receives than the queues may send commands.
# variants: rxe rxe6 siw siw6
# covers: nvme/host fabric/rdma fabric/rdma/verbs
# go-test: ./tests/lab/hostgo
# limit: 480
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
copy_function target_config plain_config
target_config() { plain_config; echo "rdma: {$RDMA}"; }
lab_up
case $FAMILY in 4) at=$ADDR:$PORT ;; 6) at=[$ADDR]:$PORT ;; esac
log=/run/host-go.log
run_tests() {
  NVMF_TEST_TARGET=$at NVMF_TEST_NQN=$NQN "$TEST_BIN" -test.v -test.timeout 230s >$log 2>&1 ||
    { grep -vE '^=== RUN|--- PASS' $log | tail -n 60; fail "the Go host fails"; }
  grep -q SKIP $log && { cat $log; fail "a test was skipped"; }
  say "$(grep -c '^ *--- PASS' $log) tests passed;" \
    "$(grep -oE '[0-9]+ commands[^0-9]*( [0-9]+ (queues|blocks))?' $log | tr '\n' ';')"
}
for RDMA in "queue_depth: 1024" "queue_depth: 1024, srq_size: 512"; do
  target_start
  run_tests
  klog_check
  target_stop
done
own=$(log_count "do not share receives")
case $LINK-$own in
  rxe-0 | siw-1) ;;
  *) fail "the log says $own times that receives are not shared" ;;
esac
