# The binding to rdma-core passes the conformance suite of fabric/rdma/verbs, on one device.
# variants: rxe rxe6 siw siw6
# covers: fabric/rdma/verbs/ibv fabric/rdma/verbs
# go-test: ./fabric/rdma/verbs/ibv
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
lab_up
log=/run/verbs.log
"$TEST_BIN" -test.v -test.shuffle on -test.timeout 120s >$log 2>&1 ||
  { grep -vE '^=== RUN|--- PASS' $log | tail -n 80; fail "the suite does not pass"; }
grep -q "^ *--- PASS: TestConformance/$ADDR" $log ||
  { tail -n 20 $log; fail "the suite did not run at $ADDR"; }
say "$(grep -c '^ *--- PASS' $log) tests passed at $ADDR"
# Soft iWARP, and soft RoCE before Linux 7, cannot lose a device that a process has open: removing
# it waits for the process.
case $LINK-$(uname -r) in
  rxe-[1-6].* | siw-*) ;;
  *)
    NVMF_TEST_REMOVE=target0 "$TEST_BIN" -test.v -test.run TestRemoval -test.timeout 120s \
      >$log 2>&1 ||
      { cat $log; fail "the device cannot be removed"; }
    say "the device was removed under a listener" ;;
esac
