# An address, a link, an RDMA device and a disk go and return under fio: each heals without a
# command, the discovery log shows the present listeners, with the same port IDs, and fio sees no
# error.
# variants: rxe siw tcp
# covers: internal/netif internal/app internal/listeners internal/volumes fabric backend/disk
# limit: 560
. "$LAB_DIR/lib.sh"
[ "$TOPOLOGY" = two ] || skip "needs a network between host and target"
safe=$(null_disk safe size=64 memory_backed=1 blocksize=512)
NAMESPACES=("1:block::$safe" 2:ram:32MiB)
DEVICE=veth0; [ $TRTYPE = tcp ] || DEVICE=target0
# The host connects to the address. The listeners beside it name it by its network and its device,
# and one is always reached.
copy_function target_config plain_config
target_config() {
  plain_config | sed "s|^listeners:|&\n  - {transport: tcp, address: 127.0.0.1, port: 4499}\n\
  - {transport: $TRTYPE, address: 10.0.0.0/24, port: 4421}\n\
  - {transport: $TRTYPE, address: $DEVICE, port: 4422}|"
}
lab_up
on_target ip link set veth0 addrgenmode none # no link-local address
on_target ip -6 addr flush dev veth0
target_start

# entries: the discovery log, as "TRANSPORT ADDRESS PORT ID".
entries() {
  on_target nvme discover -t tcp -a 127.0.0.1 -s 4499 --hostnqn=$HOSTNQN --hostid=$HOSTID \
    -o json 2>/run/log.err | jq -r '.records[] | select(.subtype == "nvme subsystem") |
    "\(.trtype) \(.traddr) \(.trsvcid) \(.portid)"' | sort
}
entries_are() { [ "$(entries)" = "$1" ]; }
wait_for 10 eval '[ "$(entries | wc -l)" = 4 ]'
ALL=$(entries) NONE=$(entries | grep 4499)
say "the discovery log: $ALL"

host_connect --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5
fio_on 2 other --iodepth=4 --bs=4k --size=8M
DEV=$(namespace_device 1)
load heal --iodepth=8 --bs=4k --size=4M --rate_iops=500 --time_based --runtime=10

# away WHAT ENTRIES: waits until the log has only these. back: and until all is as before.
away() { say "$1"; wait_for 10 entries_are "$2"; sleep 2; }
back() {
  wait_for 10 entries_are "$ALL"
  wait_for 30 ctrl_live
  io_mark; wait_for 30 load_moved 100
}
wait_for 10 load_moved 100
on_target ip addr del $ADDR/$PREFIX dev veth0
away "the address goes" "$NONE"
on_target ip addr add $ADDR/$PREFIX dev veth0; back

on_target ip addr add 10.0.0.3/24 dev veth0
say "another address comes and goes"
wait_for 10 eval '[ "$(entries | grep -c 10.0.0.3)" = 2 ]'
on_target ip addr del 10.0.0.3/24 dev veth0; back

# Soft RoCE of Linux 7.3 drops all connection requests once its link was down, with any target.
# There only the discovery log is checked, at the end.
link_down() {
  on_target ip link set veth0 down
  away "the link of the target is down" "$NONE"
  on_target ip link set veth0 up
}
if [ $LINK != rxe ]; then
  link_down; back
  ip link set veth1 down
  away "the link of the host is down" "$ALL"
  ip link set veth1 up; back
fi

# Soft iWARP cannot lose a device that a process has open: removing it waits for the process.
case $LINK in
  rxe)
    on_target rdma link del target0
    away "the RDMA device goes" "$NONE"
    rdma_link target0 veth0 on_target; back ;;
  tcp)
    ip link del veth1
    away "the interface goes" "$NONE"
    ip link add veth0 mtu 4200 type veth peer name veth1
    ip link set veth0 addrgenmode none netns target; ip link set veth1 mtu 4200 up
    ip addr add $HOSTADDR/$PREFIX dev veth1
    on_target ip addr add $ADDR/$PREFIX dev veth0; on_target ip link set veth0 up; back ;;
esac

null_power safe 0
away "the disk goes" "$ALL"
null_power safe 1; back
load_ends
on_target "$TARGET_BIN" listeners
host_disconnect
if [ $LINK = rxe ]; then link_down; wait_for 10 entries_are "$ALL"; fi
target_stop
klog_check 'nvme|I\/O error|no usable path|callbacks suppressed'
