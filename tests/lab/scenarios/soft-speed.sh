# The software stack compared with rdma-core over soft RoCE (rxe): the same target twice,
# alternating, in one boot, with the same host over rxe. Printed: medians of IOPS and their ratio,
# and the target's context switches for an I/O. Nothing is compared with a bound, as the ratios
# depend on other work of the machine. RUN, ROUNDS and EACH choose the rows, their number and the
# seconds of each measurement.
# variants: soft
# covers: fabric/rdma/verbs/soft/wire fabric/rdma/verbs/soft/engine fabric/rdma/verbs/soft/roce
# limit: 400
# alone: it measures
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
: "${ROUNDS:=$(sized 1 2 6)}" "${EACH:=1}" "${RUN:=}"
# The other target needs an RDMA device, so all devices stay visible in all network namespaces.
rdma() { [ "$1" = system ] || command rdma "$@"; }
SOFT_STACK='stack: soft, '
lab_up
target_start
# The other target: a network and a namespace of its own, with an RDMA device.
OTHER=10.0.9.1
ip netns add device
ip link add veth4 mtu 4200 type veth peer name veth5 mtu 4200
ip link set veth4 netns device
ip -n device link set lo up; ip -n device link set veth4 up; ip link set veth5 up
ip -n device addr add $OTHER/24 dev veth4; ip addr add 10.0.9.2/24 dev veth5
rdma_link other0 veth4 "nsenter --net=/run/netns/device"
rdma_link host1 veth5 ""
target_config | sed "s|stack: soft, address: \"$ADDR\"|address: $OTHER|; s|$NQN|$NQN-device|" \
  >/run/other.yaml
echo 'control: {socket: /run/other.sock}' >>/run/other.yaml
STATE_DIRECTORY=/run/other nsenter --net=/run/netns/device "$TARGET_BIN" serve \
  --config /run/other.yaml >/run/other.log 2>&1 & other=$!
# A machine's interface merges packets that arrive together. A veth does so only if told to.
on_target ethtool -K veth0 gro on; nsenter --net=/run/netns/device ethtool -K veth4 gro on
declare -A DEVICE PIDS=([soft]=$TPID [rxe]=$other)
declare -A NQNS=([soft]=$NQN [rxe]=$NQN-device) ADDRS=([soft]=$ADDR [rxe]=$OTHER)
select_target() { NQN=${NQNS[$1]} ADDR=${ADDRS[$1]}; }
for who in soft rxe; do
  select_target $who
  wait_for 20 discover >/run/discovery
  host_connect --nr-io-queues=1
  DEVICE[$who]=$DEV
  dd if=/dev/zero of="$DEV" bs=1M count=48 oflag=direct status=none
done

figures=/run/figures; : >$figures
# measure WHO WORK FIO-OPTIONS...
measure() {
  local who=$1 work=$2 before; shift 2
  before=$(switches $who)
  fio --name=m --filename="${DEVICE[$who]}" --direct=1 --ioengine=io_uring --thread \
    --norandommap --size=48M --time_based --runtime="$EACH" --unified_rw_reporting=mixed \
    --output-format=json --output=/tmp/m.json "$@" >/tmp/fio.err 2>&1 ||
    { cat /tmp/fio.err; fail "fio, $who: $work"; }
  echo "$work|$who|$(sed -n '/^{/,$p' /tmp/m.json |
    jq -r '.jobs[0].mixed | "\(.iops | floor)|\('$(($(switches $who) - before))' / .total_ios)"')" \
    >>$figures
}
switches() { TPID=${PIDS[$1]} target_switches; }
for r in $(seq "$ROUNDS"); do
  while read -r work options; do
    [[ $work =~ $RUN ]] || continue
    order="soft rxe"; [ $((r % 2)) = 1 ] || order="rxe soft"
    # shellcheck disable=SC2086
    for who in $order; do measure $who $work $options; done
  done <<'END'
4K-read --rw=randread --bs=4k --iodepth=32
4K-write --rw=randwrite --bs=4k --iodepth=32
128K-read --rw=read --bs=128k --iodepth=16
128K-write --rw=write --bs=128k --iodepth=16
END
done
median() { # WORK WHO COLUMN
  grep -F "$1|$2|" $figures | cut -d'|' -f$3 | sort -n |
    awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}
for work in $(cut -d'|' -f1 $figures | sort -u); do
  soft=$(median $work soft 3) rxe=$(median $work rxe 3)
  say "$work: soft $soft IOPS, rxe $rxe, ratio $(jq -n "$soft / $rxe * 100 | floor / 100");" \
    "context switches of the target for an I/O: $(median $work soft 4 | cut -c 1-4)," \
    "$(median $work rxe 4 | cut -c 1-4)"
done
for who in soft rxe; do select_target $who; host_disconnect; done
select_target soft
kill $other; wait $other || fail "the other target: exit code $?"
target_stop
nsenter --net=/run/netns/device rdma link del other0; ip link del veth5; ip netns del device
