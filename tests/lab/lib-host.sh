# The Linux host: connecting, its devices, fio.
CTRL=''                # nvme0
DEV=''                 # /dev/nvme0n1

discover() { nvme discover -t $TRTYPE -a $ADDR -s $PORT --hostnqn=$HOSTNQN --hostid=$HOSTID "$@"; }
# nvme_connect [nvme connect's options]
nvme_connect() {
  nvme connect -t $TRTYPE -a $ADDR -s $PORT -n $NQN --hostnqn=$HOSTNQN --hostid=$HOSTID "$@"
}

# host_connect [nvme connect's options]: connects and waits for the block device of every namespace.
host_connect() {
  local before after
  before=$(controllers)
  nvme_connect "$@" || fail "nvme connect $*: exit code $?"
  after=$(controllers)
  CTRL=$(comm -13 <(echo "$before") <(echo "$after") | head -n1)
  [ -n "$CTRL" ] || fail "nvme connect created no controller"
  wait_for 10 ctrl_live
  wait_for 10 all_namespaces
  DEV=$(namespace_device "$(cut -d: -f1 <<<"${NAMESPACES[0]}")")
}
# host_connect_again OPTIONS: another controller of the same host over the same path, which nvme-cli
# refuses to create. OPTIONS are the kernel's own, as in nr_io_queues=4,queue_size=128.
host_connect_again() {
  local options="transport=$TRTYPE,traddr=$ADDR,trsvcid=$PORT,nqn=$NQN,hostnqn=$HOSTNQN"
  echo "$options,hostid=$HOSTID,duplicate_connect,$1" >/dev/nvme-fabrics ||
    fail "connecting with $1"
}
host_disconnect() {
  nvme disconnect -n $NQN >/dev/null || fail "nvme disconnect: exit code $?"
  wait_for 10 no_controllers
}
controllers() {
  local d
  for d in /sys/class/nvme/nvme*; do
    [ "$(cat "$d/subsysnqn" 2>/dev/null)" = $NQN ] && basename "$d"
  done | sort
}
no_controllers() { [ -z "$(controllers)" ]; }
ctrl_live() { [ "$(cat "/sys/class/nvme/$CTRL/state" 2>/dev/null)" = live ]; }
ctrl_lost() { ! ctrl_live; }
all_namespaces() { # their devices exist, and can be opened, which comes later
  local n d
  for n in "${NAMESPACES[@]}"; do
    d=$(namespace_device "${n%%:*}")
    [ -n "$d" ] && { : <"$d"; } 2>/dev/null || return 1
  done
}
namespace_device() { # NSID: the block device, once it can be read
  local d name
  for d in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n* "/sys/class/nvme/$CTRL"/nvme*n*; do
    name=$(basename "$d")
    [ -e "$d/nsid" ] && [ "$(cat "$d/nsid")" = "$1" ] || continue
    [ -b "/dev/$name" ] && [ "$(cat "$d/size")" != 0 ] || continue
    case $name in *c[0-9]*n*) continue ;; esac # one path of a multipath device
    [ "$(cat "$d/device/subsysnqn" 2>/dev/null || echo $NQN)" = $NQN ] || continue
    echo "/dev/$name"; return
  done
}

# nvme_io read|write NSID [OFFSET]: one command of 4 KiB at OFFSET bytes, with its data in
# /tmp/block; prints the output of nvme-cli. nvme_flush NSID: the same for a Flush.
nvme_io() {
  local dev bs
  dev=$(namespace_device "$2"); bs=$(blockdev --getss "$dev")
  nvme "$1" "$dev" --namespace-id="$2" --start-block=$((${3:-0} / bs)) \
    --block-count=$((4096 / bs - 1)) --data-size=4096 --data=/tmp/block 2>&1 || true
}
nvme_flush() { nvme flush "$(namespace_device "$1")" --namespace-id="$1" 2>&1 || true; }
# io_works, io_fails REGEX: nvme_io succeeds, or fails with a status that matches, with any DNR and
# more bits. flush_works, flush_fails: the same for nvme_flush.
io_works() { local s; s=$(nvme_io "$@"); ! grep -qi status <<<"$s" || fail "$*: $s"; }
io_fails() {
  local want=$1 s; shift
  s=$(nvme_io "$@"); grep -qiE "$want" <<<"$s" || fail "$*, which should fail: $s"
}
flush_works() { local s; s=$(nvme_flush "$1"); [[ $s == *uccess* ]] || fail "flush: $s"; }
flush_fails() { [[ $(nvme_flush "$1") != *uccess* ]] || fail "flush succeeded: $2"; } # NSID WHY
# Statuses, by name and by code.
READ_ERROR='unrecovered|0x2?281' WRITE_FAULT='write fault|0x2?280'
PATH_ERROR='internal path error|0x2?300' OUT_OF_RANGE='LBA out of range|0x[46]?080'
critical_warning() { nvme smart-log "/dev/$CTRL" "$@" -o json | jq .critical_warning; }

# fio_run NAME FIO-OPTIONS...: one job on $FIO_FILE or $DEV; fails if fio does. The result is in
# /tmp/NAME.json.
# fio ignores SIGPIPE: nvme-tcp sends commands in the context of the process that submits them, and
# when the target has closed the connection at that moment, that process gets the signal ("failed to
# send request -32").
fio_run() {
  local name=$1 rc=0; shift
  (
    trap '' PIPE
    exec fio --name="$name" --filename="${FIO_FILE:-$DEV}" --direct=1 --ioengine=io_uring --thread \
      --norandommap --randrepeat=1 --group_reporting --output-format=json \
      --output="/tmp/$name.json" "$@"
  ) >/tmp/fio.err 2>&1 || rc=$?
  if [ $rc != 0 ]; then
    cat /tmp/fio.err; grep -v '^[[:space:]"{}]' "/tmp/$name.json" | head -n 20
    fail "fio $name: exit code $rc"
  fi
  sed -n "/^{/,\$p" "/tmp/$name.json" | jq -r --arg n "$name" '.jobs[0] |
    "   \($n): \(.read.total_ios) reads and \(.write.total_ios) writes in \(.job_runtime) ms"'
}
# fio_verify NAME FIO-OPTIONS...: writes with checksums and reads everything back. With --time_based
# it reads as it goes on, because at the end fio reads nothing if it has not written all of --size.
fio_verify() {
  local name=$1 backlog=''; shift
  case " $* " in *' --time_based '*) backlog=--verify_backlog=64 ;; esac
  fio_run "$name" --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 --norandommap=0 \
    $backlog "$@"
}
# fio_on NSID NAME FIO-OPTIONS...: fio_verify on a namespace, which becomes $DEV.
fio_on() { DEV=$(namespace_device "$1"); shift; fio_verify "$@"; }

# completed DEVICE: how many I/Os a block device has completed.
completed() {
  local stat
  read -ra stat <"/sys/class/block/${1##*/}/stat"
  echo $((stat[0] + stat[4]))
}
# io_moved N: succeeds once $DEV has completed N more I/Os than at the previous success or io_mark.
IO_SEEN=0
io_mark() { IO_SEEN=$(completed "$DEV"); }
io_moved() {
  local now
  now=$(completed "$DEV")
  [ $((now - IO_SEEN)) -ge "$1" ] || return 1
  IO_SEEN=$now
}
# load NAME FIO-OPTIONS...: fio_verify in the background, on $DEV. load_goes_on starts the load again
# if it has ended: on a slow machine the steps under load may take longer than it. load_moved N is
# both load_goes_on and io_moved. load_ends waits for the verification.
load() {
  LOAD=("$@")
  io_mark
  fio_verify "$@" & LOAD_PID=$!
}
load_goes_on() {
  if ! kill -0 "$LOAD_PID" 2>/dev/null; then load_ends; load "${LOAD[@]}"; fi
}
load_moved() { io_moved "$1" || { load_goes_on; return 1; }; }
load_ends() { wait "$LOAD_PID" || fail "fio ended with exit code $?"; }
