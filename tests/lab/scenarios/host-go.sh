# The Go initiator (nvme/host) over rdma-core: sizes up to MDTS, verified mixed I/O at depths 128 and 1024, resets.
# variants: rxe rxe6 siw siw6
# go-test: ./tests/lab/hostgo
# limit: 100
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
eval "$(declare -f target_config | sed '1s/target_config/plain_config/')"
target_config() { plain_config; echo "rdma: {queue_depth: 1024}"; }
lab_up; target_start
case $FAMILY in 4) at=$ADDR:$PORT ;; 6) at=[$ADDR]:$PORT ;; esac
log=/run/host-go.log
NVMF_TEST_TARGET=$at NVMF_TEST_NQN=$NQN "$TEST_BIN" -test.v -test.timeout 80s >$log 2>&1 || { grep -vE '^=== RUN|--- PASS' $log | tail -n 60; fail "the Go host fails"; }
grep -q SKIP $log && { cat $log; fail "a test was skipped"; }
say "$(grep -c '^ *--- PASS' $log) tests passed; $(grep -oE '[0-9]+ commands' $log | tr '\n' ' ')"
klog_check
target_stop
