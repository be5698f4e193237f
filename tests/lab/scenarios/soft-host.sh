# A host without RDMA device (bench) against the kernel's target over soft RoCE (rxe) or siw: it verifies
# what it has written, with small and large I/O on several queues. The kernel's target fetches the
# data of large writes with RDMA READ. Then the same while packets are lost, which both sides repeat.
# variants: soft soft6 softiw softiw6
# covers: nvme/host fabric/rdma/verbs/soft fabric/rdma/verbs/soft/iwarp fabric/rdma/verbs/soft/mpa fabric/rdma/verbs/soft/wire fabric/rdma/verbs/soft/engine fabric/rdma/verbs/soft/roce fabric/rdma/verbs/soft/ids fabric/rdma/verbs/soft/cm internal/bench
# cpus: 2
# limit: 240
. "$LAB_DIR/lib.sh"
TARGET=nvmet
NAMESPACES=(1:ram:64MiB)
lab_up
# The kernel's target has the first network namespace, where soft is the host elsewhere.
ADDR=$HOSTADDR
target_start
case $FAMILY in 4) at=$ADDR:$PORT ;; 6) at=[$ADDR]:$PORT ;; esac
IWARP=; [ $SOFT_HOST = rxe ] || IWARP=--iwarp
verify() { # ARGUMENT...: writes, reads and compares
  on_target "$TARGET_BIN" bench --transport rdma $IWARP --address "$at" --subsystem "$NQN" \
    --timeout 60s --verify --destroy-data "$@" >/run/bench.log 2>&1 ||
    fail "$*: $(cat /run/bench.log)"
  say "$*: $(grep -E '^[a-z]+ (reads|writes)' /run/bench.log | tr '\n' ';')"
}
verify --rw randwrite --bs 4k --numjobs 4 --size 16m
verify --rw randwrite --bs 128k --numjobs 2
# The kernel's target needs many work requests for one of these reads: see receives in nvme/host.
verify --rw write --bs 1m --iodepth 4
verify --rw write --bs 1m --iodepth 1

both() { "$@" dev veth1 root "${NETEM[@]}"; on_target "$@" dev veth0 root "${NETEM[@]}"; }
for fault in "loss 1%" "delay 1ms reorder 25% 50%" "duplicate 1%"; do
  read -ra NETEM <<<"netem limit 10000 $fault"
  both tc qdisc add
  say "$fault"
  verify --rw randwrite --bs 4k --iodepth 8 --size 4m
  verify --rw randwrite --bs 64k --iodepth 4 --size 8m
  NETEM=(); both tc qdisc del
done
# When packets are lost, bench may send a Keep Alive before it has enabled the controller, or after.
klog_check 'got cmd 24 while CC.EN == 0'
target_stop
