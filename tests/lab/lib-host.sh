# The Linux host: connecting, its devices, fio.
CTRL=''                # nvme0
DEV=''                 # /dev/nvme0n1

discover() { nvme discover -t $TRTYPE -a $ADDR -s $PORT --hostnqn=$HOSTNQN --hostid=$HOSTID "$@"; }

# host_connect [nvme connect's options]: connects and waits until every namespace has its block device.
host_connect() {
  local before after
  before=$(controllers)
  nvme connect -t $TRTYPE -a $ADDR -s $PORT -n $NQN --hostnqn=$HOSTNQN --hostid=$HOSTID "$@" || fail "nvme connect $*: exit code $?"
  after=$(controllers)
  CTRL=$(comm -13 <(echo "$before") <(echo "$after") | head -n1)
  [ -n "$CTRL" ] || fail "nvme connect created no controller"
  wait_for 10 ctrl_live
  wait_for 10 all_namespaces
  DEV=$(namespace_device "$(cut -d: -f1 <<<"${NAMESPACES[0]}")")
}
# host_connect_again OPTIONS: one more controller of the same host over the same path, which nvme-cli refuses to make. OPTIONS are
# the kernel's own, as in nr_io_queues=4,queue_size=128.
host_connect_again() {
  echo "transport=$TRTYPE,traddr=$ADDR,trsvcid=$PORT,nqn=$NQN,hostnqn=$HOSTNQN,hostid=$HOSTID,duplicate_connect,$1" >/dev/nvme-fabrics ||
    fail "connecting with $1"
}
host_disconnect() {
  nvme disconnect -n $NQN >/dev/null || fail "nvme disconnect: exit code $?"
  wait_for 10 no_controllers
}
controllers() { local d; for d in /sys/class/nvme/nvme*; do [ "$(cat "$d/subsysnqn" 2>/dev/null)" = $NQN ] && basename "$d"; done | sort; }
no_controllers() { [ -z "$(controllers)" ]; }
ctrl_live() { [ "$(cat "/sys/class/nvme/$CTRL/state" 2>/dev/null)" = live ]; }
all_namespaces() { local n; for n in "${NAMESPACES[@]}"; do [ -n "$(namespace_device "${n%%:*}")" ] || return 1; done; }
namespace_device() { # NSID: the block device, once it can be read
  local d
  for d in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n* "/sys/class/nvme/$CTRL"/nvme*n*; do
    [ -e "$d/nsid" ] && [ "$(cat "$d/nsid")" = "$1" ] && [ -b "/dev/$(basename "$d")" ] && [ "$(cat "$d/size")" != 0 ] || continue
    case $(basename "$d") in *c[0-9]*n*) continue ;; esac
    [ "$(cat "$d/device/subsysnqn" 2>/dev/null || echo $NQN)" = $NQN ] || continue
    echo "/dev/$(basename "$d")"; return
  done
}

# fio_run NAME FIO-OPTIONS...: one job on $DEV; fails when fio does. The result is /tmp/NAME.json.
fio_run() {
  local name=$1 rc=0; shift
  fio --name="$name" --filename="$DEV" --direct=1 --ioengine=io_uring --thread --norandommap --randrepeat=1 --group_reporting \
    --output-format=json --output="/tmp/$name.json" "$@" >/tmp/fio.err 2>&1 || rc=$?
  if [ $rc != 0 ]; then cat /tmp/fio.err; grep -v '^[[:space:]"{}]' "/tmp/$name.json" | head -n 20; fail "fio $name: exit code $rc"; fi
  sed -n "/^{/,\$p" "/tmp/$name.json" | jq -r --arg n "$name" '.jobs[0] | "   \($n): read \(.read.iops|floor) IOPS \(.read.bw) KiB/s, write \(.write.iops|floor) IOPS \(.write.bw) KiB/s"'
}
# fio_verify NAME FIO-OPTIONS...: writes with checksums and reads everything back.
fio_verify() {
  local name=$1; shift
  fio_run "$name" --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 --norandommap=0 "$@"
}
ctrl_lost() { ! ctrl_live; }
ios() { awk '{print $1 + $5}' "/sys/block/$(basename "$DEV")/stat"; }
# io_moved N: succeeds once the namespace's block device has completed N more I/Os than at the previous success, or at io_mark.
IO_SEEN=0
io_mark() { IO_SEEN=$(ios); }
io_moved() {
  local now
  now=$(ios)
  [ $((now - IO_SEEN)) -ge "$1" ] || return 1
  IO_SEEN=$now
}
# load NAME FIO-OPTIONS...: fio_verify in the background. load_moved N is io_moved, and follows a load that is over by another: where the
# machine is slow, what is done under load takes longer than that. load_ends: all is verified.
load() {
  LOAD=("$@")
  io_mark
  fio_verify "$@" & LOAD_PID=$!
}
load_moved() {
  io_moved "$1" && return
  if ! kill -0 "$LOAD_PID" 2>/dev/null; then load_ends; load "${LOAD[@]}"; fi
  return 1
}
load_ends() { wait "$LOAD_PID" || fail "fio ended with exit code $?"; }
