# Two gateways to an image of a Ceph cluster, and a Linux host with native multipath and ext4 on it.
# The gateway in use is killed, stopped and continued, cut off and drained while fio writes and
# verifies. fio sees no error, and no write of a gateway that was replaced arrives later. The
# longest stalls are printed, and make cluster-failover prints a table of them.
#   EVENTS=kill,drain   only these
#   ROUNDS=N            each event N times (1)
#   STOP=N              a stopped gateway continues after N seconds (60 in full)
#   EVENTS=back         it is killed and started, and gets the group back; there is a second group
#   MIXED=1             gateway b has tcp, whatever the transport of gateway a is
#   OLD_BIN=FILE        gateway b is this program, of an earlier version
# variants: tcp rxe
# covers: internal/group internal/group/rados internal/app backend/rbd nvme/target/ana
# cpus: 2
# limit: 1200
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-ceph.sh"
. "$LAB_DIR/lib-gateways.sh"
[ "$TARGET" = ours ] || skip "the kernel's target has no gateways"
: "${ROUNDS:=1}" "${STOP:=$(sized 0 0 60)}" "${MIXED:=}" "${EVENTS:=}"
ALL='kill crash term drain stop late hosts ceph both'
[ "$EVENTS" != back ] || BALANCE=5 NAMESPACES=(1:rbd 2:rbd)
[ -n "$EVENTS" ] || EVENTS="drain $(sample 1 ${ALL/drain/})"
[ -z "$MIXED" ] || GW_TRTYPE[b]=tcp

# fault EVENT: what happens to $active, the gateway in use. repair EVENT ends that.
fault() {
  case $1 in
    kill) gateway_end $active KILL ;;
    back) gateway_end $active KILL; wait_for 60 taken_over; wait_for 60 load_moved 20
      gateway_start $active; wait_for 90 moved_back
      grep -h 'fewer groups' /run/target-[ab].log ;;
    crash) gateway_end $active KILL; gateway_start $active ;;
    term) gateway_end $active TERM ;;
    drain) gateway_ana $active set 1 inaccessible >/dev/null ;;
    stop) gateway_signal $active STOP ;;
    late) unplug $active ceph; wait_for 3 writing; sleep 0.5; gateway_signal $active STOP
      writing || fail "no write is under way: none can be late" ;;
    hosts | ceph) unplug $active $1 ;;
    both) unplug $active ceph; unplug $active hosts ;;
  esac
}
repair() {
  case $1 in
    kill | term) gateway_start $active ;;
    drain) gateway_ana $active set 1 configured >/dev/null ;;
    stop) after_pause ;;
    late) after_pause late_writes ;;
    hosts | ceph | both) replug $active ;;
  esac
}
# after_pause [COMMAND]: a stopped gateway goes on when the file has newer content, which stays.
PATTERN=0
after_pause() {
  sleep $STOP
  PATTERN=$((PATTERN % 250 + 1))
  fio_run newer --rw=write --bs=64k --size=$SIZE --verify=pattern \
    --verify_pattern=$PATTERN --do_verify=0
  ${1:+"$@"}
  gateway_signal $active CONT
  wait_for 60 settled
  fio_run compare --rw=read --bs=64k --size=$SIZE --verify=pattern \
    --verify_pattern=$PATTERN
}

# late_writes: the kernel of the stopped gateway sends what it could not, up to two minutes later.
# When the gateway goes on it would fence itself for I/O that hangs, also if nobody else has.
late_writes() {
  ! nothing_queued || fail "no write is queued: none can be late"
  replug $active; wait_for 150 nothing_queued
}
nothing_queued() {
  on_gateway $active ss -tnH dst $CEPH_ADDR | awk '$3 > 0 {queued = 1} END {exit queued}'
}
writing() { # the gateway in use has writes; prints how many
  local n
  n=$(awk '{print $2}' "$(path_of $active)/inflight")
  [ "$n" -gt 0 ] && echo "   $n writes under way"
}

SIZE=8M
taken_over() { usable $other && ! usable $active; }
moved_back() { usable $active && ! usable $other; }
event() { # NAME
  local active other seconds
  wait_for 60 settled
  active=$(serving); [ $active = a ] && other=b || other=a
  STALL=0
  seconds=$(sized 3 3 5)
  [ $1 != late ] || seconds=20 # its writes must not end before the gateway is cut off
  [ $1 != back ] || seconds=60
  load events --bs=4k --size=$SIZE --iodepth=16 --time_based --runtime=$seconds
  wait_for 20 load_moved 20
  fault $1
  [[ $1 =~ ^(crash|back)$ ]] || wait_for 60 taken_over
  wait_for 60 load_moved 20
  load_ends
  say "$1 of gateway $active: the longest stall was $STALL ms"
  echo "$1 $STALL" >>/run/out/stalls
  repair $1
}

gateways_up
gateways_connect
for round in $(seq $ROUNDS); do
  for e in ${EVENTS//,/ }; do event $e; done
done
klog_check 'nvme nvme[0-9]+: |nvme_tcp: queue|no usable path - requeuing|callbacks suppressed'
gateways_down
