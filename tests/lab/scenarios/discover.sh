# The discovery controller, on the same listener, lists the subsystem with the transport's fields.
# variants: rxe rxe6 siw siw6 tcp tcp6 soft softiw
# covers: nvme nvme/target nvme/target/discovery fabric/tcp fabric/rdma
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
say "nvme discover"
discover | tee /run/discover.txt
want() { grep -Eq "$1" /run/discover.txt || fail "the discovery log has no line like: $1"; }
want "^trtype: +$TRTYPE"
want "^adrfam: +ipv$FAMILY"
want "^subtype: +nvme subsystem"
want "^trsvcid: +$PORT"
want "^subnqn: +$NQN\$"
want "^traddr: +$ADDR"
klog_check
