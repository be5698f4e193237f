# Two hosts with paths to two gateways to an image of Ceph: registrations and each type of
# reservation by nvme-cli are in force at the other gateway after a drain and after a kill.
# variants: tcp
# covers: internal/group internal/group/rados internal/app nvme/target/reservation
# cpus: 2
# limit: 900
# kernel: nvme_core.multipath=N
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-ceph.sh"
. "$LAB_DIR/lib-gateways.sh"
[ "$TARGET" = ours ] || skip "the kernel's target has no gateways"
declare -A PATHS=() # the controllers of a host: without multipathing each has a device of its own

# on HOST COMMAND [OPTION...]: a command of nvme-cli for namespace 1 over the path that is served.
on() {
  local c
  for c in ${PATHS[$1]}; do
    if timeout 20 nvme $2 /dev/${c}n1 --namespace-id=1 "${@:3}" >/run/said 2>&1; then return; fi
    ! conflict || return 0
  done
  return 1
}
conflict() { grep -qiE 'conflict|0x4?083' /run/said; }
works() { say "$*"; wait_for 60 on "$@"; ! conflict || fail "$*: $(cat /run/said)"; }
conflicts() { say "$*, a conflict"; wait_for 60 on "$@"; conflict || fail "$*: $(cat /run/said)"; }
BLOCKS='--start-block=0 --block-count=7 --data-size=4096'
writes() { $2 $1 write $BLOCKS --data=/dev/zero; } # HOST works|conflicts
reads() { $2 $1 read $BLOCKS --data=/run/block; }
holds() { # TYPE: host 1 holds a reservation, and both hosts are registered
  works 1 resv-report --eds --numd=63 --output-format=json
  [ "$(jq ".rtype == $1 and .regctl == 2" </run/said)" = true ] || fail "not $1: $(cat /run/said)"
}
move() { # drain|kill
  local from=a to=b
  gateway_says a optimized || { from=b to=a; }
  say "$1 of gateway $from"
  if [ $1 = kill ]; then gateway_end $from KILL; else gateway_ana $from set 1 inaccessible; fi
  wait_for 60 gateway_says $to optimized
  if [ $1 = kill ]; then gateway_start $from; else gateway_ana $from set 1 configured; fi
}

gateways_up
for host in 1 2; do
  HOSTID=${HOSTID%?}$host HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:${HOSTID%?}$host
  before=$(controllers)
  for g in a b; do
    echo "transport=$TRTYPE,traddr=${GW_ADDR[$g]},trsvcid=$PORT,nqn=$NQN,hostnqn=$HOSTNQN,\
hostid=$HOSTID,duplicate_connect,reconnect_delay=1" >/dev/nvme-fabrics
  done
  PATHS[$host]=$(comm -13 <(echo "$before") <(controllers) | tr '\n' ' ')
done
for host in 1 2; do works $host resv-register --nrkey=$host --rrega=0; done
for type in $(sized 6 '2 6' '1 2 3 4 5 6'); do
  works 1 resv-acquire --crkey=1 --rtype=$type --racqa=0
  [ $type = 2 ] && move kill || move drain
  holds $type
  writes 1 works
  case $type in
    1) writes 2 conflicts; reads 2 works ;;
    2) writes 2 conflicts; reads 2 conflicts ;;
    *) writes 2 works ;;
  esac
  [ $type = 6 ] || works 1 resv-release --crkey=1 --rtype=$type --rrela=0
done
works 2 resv-register --crkey=2 --rrega=1
move kill
writes 2 conflicts; reads 2 conflicts; writes 1 works
works 2 resv-register --nrkey=2 --rrega=0
works 2 resv-acquire --crkey=2 --prkey=1 --rtype=6 --racqa=2
writes 2 works; writes 1 conflicts; reads 1 conflicts
works 2 resv-release --crkey=2 --rtype=6 --rrela=0
writes 1 works
gateways_down
