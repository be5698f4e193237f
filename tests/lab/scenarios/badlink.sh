# A bad network: packets are lost, duplicated, reordered, delayed and corrupted, then the link is
# down for six seconds, while fio writes and verifies. No I/O error, no wrong data. With TCP,
# digests are on, so that damage not detected by its checksums would show. While packets are lost,
# doctor and the page report it, and stop when none are.
# variants: tcp rxe
# soak: soft
# covers: fabric/tcp fabric/rdma nvme/target/observe internal/doctor internal/flight internal/rates internal/web internal/web/static internal/metrics
# cpus: 2
# limit: 480
. "$LAB_DIR/lib.sh"
[ "$TOPOLOGY" != loop ] || skip "needs a network between host and target"
NAMESPACES=(1:ram:256MiB)
copy_function target_config plain_config
target_config() { plain_config; echo 'web: {listen: "127.0.0.1:9600"}'; }
lab_up; target_start
case $TRANSPORT in
  tcp)
    digests=(--hdr-digest --data-digest) found='packets to .* again'
    faults=("loss 1%" "duplicate 1%" "delay 2ms reorder 25% 50%" "delay 5ms 2ms" "corrupt 0.1%" "loss 5%")
    kind=()
    ;;
  *) # an adapter waits for a timeout, or sends everything again, for each packet out of order
    digests=() found='packets were lost or sent again'
    faults=("loss 1%" "duplicate 1%" "delay 5ms")
    # Writes that fit into their commands. When soft RoCE resends waiting work requests, it also
    # registers memory again, which fails (rxe_reg_fast_mr: it is not free) and ends the connection.
    # With reads, or larger writes, that happens every second, and little is sent in between.
    kind=(--do_verify=0)
    ;;
esac
host_connect "${digests[@]}" --keep-alive-tmo=30 --reconnect-delay=1 --ctrl-loss-tmo=120
both() { "$@" dev veth1 root "${NETEM[@]}"; on_target "$@" dev veth0 root "${NETEM[@]}"; }
for fault in "${faults[@]}"; do
  read -ra NETEM <<<"netem $fault"
  both tc qdisc add
  fio_verify "${fault//[^a-z0-9]/-}" --iodepth=16 --bsrange=512-32k --blockalign=512 --size=8M \
    --io_size=2M
  NETEM=(); both tc qdisc del
done
# look: the reports of doctor and the page meanwhile. A state of the page takes some seconds here,
# and the first one is not compared with anything.
look() {
  { on_target curl -sNm 15 http://127.0.0.1:9600/events || true; } >/run/page.log & # it goes on and on
  on_target "$TARGET_BIN" doctor >/run/doctor.log || true # it may warn of the machine
  wait $!
}
NETEM=(netem loss 1%); both tc qdisc add
load lossy --iodepth=16 --bs=4k --size=8M --time_based --runtime=20 "${kind[@]}"
wait_for 10 load_moved 100
named() {
  load_goes_on; look
  grep "$found" /run/doctor.log && grep -o "$found in the last [0-9]* s" /run/page.log
}
for ((i = 0; i < 4; i++)); do ! named || break; done # a busy machine may send little for a while
[ "$i" -lt 4 ] || fail "the network is not named: $(cat /run/doctor.log /run/page.log)"
# Not del: while a queue of packets is replaced the kernel takes none. Soft RoCE puts a queue pair
# that meets that into the error state; its QP 1 stays there, and makes no connection any more.
NETEM=(netem); both tc qdisc change
load_ends
# On a busy machine a peer that is late is taken for a loss, now and then.
not_named() { look; ! grep -h "$found" /run/doctor.log /run/page.log; }
for ((i = 0; i < 4; i++)); do ! not_named || break; done
[ "$i" -lt 4 ] || fail "the network is named when nothing is lost"
if [ "$TRANSPORT" = tcp ]; then # over rxe the host needs minutes
  load down --iodepth=16 --bs=4k --size=16M --time_based --runtime=12
  wait_for 10 load_moved 100
  say "the link goes down"
  ip link set veth1 down; sleep 6; ip link set veth1 up
  load_ends
fi
wait_for 30 ctrl_live
host_disconnect
NETEM=(); both tc qdisc del
expected='error recovery|for CQE|keepalive RTT|keep_alive_end_io|I\/O|no usable path|callbacks suppressed'
# Requests of the host after it has reconnected may all fail if the connection ends again.
[ "$TRANSPORT" = tcp ] || expected+='|nvme nvme[0-9]+: .*([Ff]ailed|Could not set queue count)'
klog_check "$expected"
