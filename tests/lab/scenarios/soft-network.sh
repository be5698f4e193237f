# The software stack on other networks: an MTU of 9,000 and of 1,500, one smaller at the host and
# one smaller at the target, a VLAN, two interfaces of which one goes down while fio writes, and
# comes back.
# variants: soft soft6 softiw softiw6
# covers: fabric/rdma fabric/rdma/verbs/soft/wire fabric/rdma/verbs/soft/roce fabric/rdma/verbs/soft/ids fabric/rdma/verbs/soft/cm fabric/rdma/verbs/soft/iwarp fabric/rdma/verbs/soft/mpa
# cpus: 2
# limit: 300
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:128MiB)
VLAN=10.0.7 SECOND=10.0.8
[ $FAMILY = 4 ] || VLAN=fd00:7: SECOND=fd00:8:
# address NETWORK 1|2: of the target or the host
address() { case $FAMILY in 4) echo "$1.$2" ;; 6) echo "$1:$2" ;; esac; }
# link NETWORK TARGET-INTERFACE HOST-INTERFACE: brings both up, with addresses
link() {
  on_target ip addr add "$(address $1 1)/$PREFIX" dev $2 $(dad); on_target ip link set $2 up
  ip addr add "$(address $1 2)/$PREFIX" dev $3 $(dad); ip link set $3 up
}
lab_up
on_target ip link add link veth0 name veth0.7 type vlan id 7
ip link add link veth1 name veth1.7 type vlan id 7
link $VLAN veth0.7 veth1.7
ip link add veth2 mtu 4200 type veth peer name veth3 mtu 4200
ip link set veth2 netns target
link $SECOND veth2 veth3
rdma_link host1 veth3 ""
[ $SOFT_HOST = rxe ] || rdma_link host2 veth1.7 "" # rxe has the VLANs of its interface
copy_function target_config plain_config
target_config() { # with a listener for each network
  local a
  plain_config | while IFS= read -r line; do
    echo "$line"
    [ "$line" = listeners: ] || continue
    for a in "$(address $VLAN 1)" "$(address $SECOND 1)"; do
      echo "  - {transport: rdma, ${SOFT_STACK}address: \"$a\"}"
    done
  done
}
target_start

mtus() { on_target ip link set veth0 mtu $1; ip link set veth1 mtu $2; }
for pair in "9000 9000" "9000 1500" "1500 1500"; do
  mtus $pair
  say "MTU of the target and the host: $pair"
  host_connect --nr-io-queues=2
  fio_verify "mtu-${pair/ /-}" --iodepth=16 --bsrange=512-256k --bs_unaligned=0 \
    --size=$(sized 4M 8M 64M)
  host_disconnect
done
mtus 1500 9000
say "MTU of the target and the host: 1500 9000"
if [ $SOFT_HOST = rxe ]; then # the host would send packets that do not arrive
  ! nvme_connect 2>/run/refused || fail "the target takes an MTU that it does not have"
  klog_has 'Connect rejected: .*MTU' || fail "the host was refused for another reason"
else
  host_connect; fio_verify mtu-1500-9000 --iodepth=16 --bs=128k --size=$(sized 4M 8M 64M)
  host_disconnect
fi
mtus 4200 4200

say "a VLAN"
first=$ADDR
ADDR=$(address $VLAN 1)
wait_for 10 reachable
host_connect
fio_verify vlan --iodepth=16 --bsrange=4k-128k --size=$(sized 4M 8M 64M)
host_disconnect
ADDR=$first

say "two interfaces"
host_connect --keep-alive-tmo=5 --reconnect-delay=1
a=$CTRL
ADDR=$(address $SECOND 1)
wait_for 10 reachable
nvme_connect --keep-alive-tmo=5 --reconnect-delay=1 || fail "nvme connect over the second one"
b=$(controllers | grep -vx "$a")
state() { [ "$(cat "/sys/class/nvme/$1/state")" = live ]; }
wait_for 10 state "$b"
for p in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >"$p"; done
load both --iodepth=8 --bs=16k --size=32M --time_based --runtime=$(sized 10 20 40)
wait_for 20 load_moved 100
say "one goes down"
on_target ip link set veth2 down
wait_for 30 eval "! state $b"
io_mark
wait_for 30 load_moved 100
state "$a" || fail "the other path was lost as well"
on_target ip link set veth2 up
[ $FAMILY = 4 ] || on_target ip addr replace "$(address $SECOND 1)/$PREFIX" dev veth2 nodad
wait_for 60 state "$b"
wait_for 30 load_moved 100
load_ends
host_disconnect
klog_check 'no usable path|callbacks suppressed|nvme nvme[0-9]+: |WR flushed'
target_stop
ip link del veth3; ip link del veth1.7
