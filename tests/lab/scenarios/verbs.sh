# The binding to rdma-core passes the conformance suite of fabric/rdma/verbs, against itself on one device.
# variants: rxe rxe6 siw siw6
# go-test: ./fabric/rdma/verbs/ibv
# limit: 100
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
lab_up
log=/run/verbs.log
"$TEST_BIN" -test.v -test.shuffle on -test.timeout 80s >$log 2>&1 || { grep -vE '^=== RUN|--- PASS' $log | tail -n 80; fail "the suite does not pass"; }
grep -q "^ *--- PASS: TestConformance/$ADDR" $log || { tail -n 20 $log; fail "the suite did not run at $ADDR"; }
say "$(grep -c '^ *--- PASS' $log) tests passed at $ADDR"
