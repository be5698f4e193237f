# rping, the example program of librdmacm, from a host over soft RoCE (rxe) or soft iWARP (siw) to a
# small server on the software stack: READs and WRITEs of three sizes, and rping compares the data.
# variants: soft soft6 softiw softiw6
# covers: fabric/rdma/verbs/soft fabric/rdma/verbs/soft/packet fabric/rdma/verbs/soft/wire fabric/rdma/verbs/soft/engine fabric/rdma/verbs/soft/roce fabric/rdma/verbs/soft/ids fabric/rdma/verbs/soft/cm fabric/rdma/verbs/soft/iwarp fabric/rdma/verbs/soft/mpa
# go-test: ./fabric/rdma/verbs/soft
. "$LAB_DIR/lib.sh"
need rping
case $FAMILY in 4) at=$ADDR:7174 ;; 6) at=[$ADDR]:7174 ;; esac
lab_up
[ $SOFT_HOST = rxe ] || export NVMF_TEST_IWARP=yes
NVMF_TEST_RPING=$at target_exec "$TEST_BIN" -test.run 'TestRping$' -test.timeout 200s \
  >/run/rping-server.log 2>&1 & server=$!
rping_run() { # ROUNDS BYTES
  timeout 60 rping -c -a $ADDR -p 7174 -C "$1" -S "$2" -V >/run/rping.log 2>&1
}
wait_for 20 rping_run 1 64
for size in 64 5000 65535; do
  rping_run $(sized 10 20 200) $size ||
    fail "rping of $size bytes: $(tail -n 5 /run/rping.log; tail -n 40 /run/rping-server.log)"
  say "rping of $size bytes"
done
kill -0 $server || fail "the server has ended: $(tail -n 40 /run/rping-server.log)"
kill $server; wait $server || true
klog_check
