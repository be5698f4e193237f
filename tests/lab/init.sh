#!/bin/bash
# First process inside the lab's kernels. The kernel command line gives LAB_VM (uml or qemu),
# LAB_DIR, LAB_OUT and LAB_SCRIPT.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LANG=C.UTF-8
if [ $$ = 1 ]; then # systemd has done this already
  mount -t proc proc /proc 2>/dev/null
  mount -t sysfs sys /sys 2>/dev/null
  mount -t devtmpfs dev /dev 2>/dev/null
  [ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
  mkdir -p /dev/shm /dev/pts; mount -t tmpfs tmp /dev/shm; mount -t devpts devpts /dev/pts
  mount -t tmpfs tmp /tmp; mount -t tmpfs tmp /run
  mount -t debugfs dbg /sys/kernel/debug 2>/dev/null
fi
ip link set lo up; hostname lab; ulimit -l unlimited; ulimit -c 0
mkdir -p /run/out /run/host
hostfs() { # DIR MOUNTPOINT ro|rw: newer kernels, then older ones
  mount -t hostfs none "$2" -o "$3,hostfs=$1" 2>/dev/null || mount -t hostfs none "$2" -o "$3,$1"
}
case $LAB_VM in
  uml) # /tmp and /run of the machine itself are visible below /run/host
    hostfs / /run/host ro; hostfs "$LAB_OUT" /run/out rw
    LAB_SCRIPT=/run/host$LAB_SCRIPT LAB_DIR=/run/host$LAB_DIR
    TARGET_BIN=${TARGET_BIN:+/run/host$TARGET_BIN} ;;
  qemu)
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /run/out
    modprobe -a configfs crc32_generic rdma_rxe ib_uverbs rdma_ucm nvme-rdma nvme-tcp \
      nvmet nvmet-rdma nvmet-tcp nvme-loop veth
    modprobe brd rd_nr=2 rd_size=4194304; modprobe null_blk nr_devices=0
    # A copy: faulting in a page of the program over 9p can take a second.
    if [ -n "$TARGET_BIN" ]; then
      install -m 755 "$TARGET_BIN" /tmp/nvmf-target; TARGET_BIN=/tmp/nvmf-target
    fi ;;
esac
mount -t configfs cfg /sys/kernel/config 2>/dev/null
export LAB_DIR TARGET_BIN
# perftest requires "cpu MHz", which /proc/cpuinfo of the user-mode kernel lacks.
if ! grep -q '^cpu MHz' /proc/cpuinfo; then
  awk -v m="${LAB_MHZ:-2600}" '{print} /^model name/{print "cpu MHz\t\t: " m}' /proc/cpuinfo \
    >/run/cpuinfo && mount --bind /run/cpuinfo /proc/cpuinfo
fi
echo "lab: Linux $(uname -r), $(nproc) CPU"
cd /tmp || exit
# run NAME LIMIT SCRIPT [NAME=VALUE...]: runs a scenario, and sets rc.
run() {
  local name=$1 limit=$2 script=$3 begin=$SECONDS watchdog; shift 3
  watch "$name" "$limit" & watchdog=$!
  echo "$watchdog" >"$LAB_PIDS"
  debian=$(printf '%s\n' "$@" | sed -n 's/^DEBIAN_ROOT=//p')
  env "$@" bash "$script"; rc=$?
  case $rc-$LAB_STATE-$debian in 0-/*- | 77-/*-) unchanged || rc=1 ;; esac
  # shellcheck disable=SC2046  # its sleep
  kill $watchdog $(pgrep -P $watchdog); wait $watchdog 2>/dev/null
  [ $rc = 0 ] || [ $rc = 77 ] || failed
  took=$((SECONDS - begin))
}
# watch NAME LIMIT: shortly before the time limit it shows the processes, the goroutines and the log
# of the target, and the kernel's log. At the time limit the scenario has failed, if others are to
# follow.
watch() {
  sleep $(($2 > 20 ? $2 - 8 : $2 / 2))
  echo "lab: of $2 s not more than 8 are left; these processes run:"
  ps -o pid,stat,wchan:20,args --ppid 2 -N | grep -v ' ps ' | cut -c1-160
  for p in $(pgrep -x nvme); do echo "nvme:"; cat "/proc/$p/stack"; done 2>/dev/null
  rdma resource show cm_id; rdma resource show qp
  tail -n 40 /run/target.log
  if [ -e /run/target.pid ]; then
    kill -QUIT "$(cat /run/target.pid)"; sleep 0.5
    tail -n 150 /run/target.log | grep -v '^r[0-9a-z]* '
  fi
  failed
  [ -n "$LAB_STATE" ] || return
  sleep 8
  ended "$1" 124 "$2"
  off
}
# failed shows possible causes of a failure, and the versions of programs outside this tree.
failed() {
  echo "lab: the last lines of the kernel's log since the set-up:"
  dmesg | sed '0,/lab: mark/d' | tail -n 40
  echo "lab: versions: Linux $(uname -r); $(versions "")" \
    "${debian:+in the root directory of Debian 13: $(versions "$debian")}"
}
versions() { # ROOT: of packages of the machine or of another root directory
  dpkg-query --admindir="$1/var/lib/dpkg" -Wf '${Package} ${Version}; ' nvme-cli fio rdma-core \
    'libssl3*' openssl ktls-utils 2>/dev/null
}
# unchanged: the kernel is in the same state as before the scenario, and has reported no fault.
unchanged() {
  local text
  text=$(state_none differs) && text=$(faults) && [ -z "$text" ] && return
  echo "FAIL: the scenario leaves behind (>), or has removed (<):"; echo "$text"
  return 1
}
differs() {
  { state_kernel; state_processes; state_rdma; } >"$LAB_STATE.now"
  diff "$LAB_STATE" "$LAB_STATE.now" | grep '^[<>]'
}
faults() {
  dmesg --level=emerg,alert,crit,err,warn | grep -E "$KLOG_FAULT" | sed 's/^/> /'
}
ended() { # NAME CODE SECONDS
  sync
  echo "$1 $2" >>/run/out/results
  echo "lab: end of $1, exit code $2, $3 s"
}
off() { sync; echo o >/proc/sysrq-trigger; sleep 5; }

LAB_PIDS=/dev/shm/lab-pids LAB_STATE='' debian=''
: >/run/out/began
if [ ! -e /run/out/list ]; then
  run "$LAB_SCRIPT" "$LAB_LIMIT" "$LAB_SCRIPT"
  echo "lab: end, exit code $rc"
  echo $rc >/run/out/rc
  off
fi
# Scenarios one after another, each line NAME LIMIT SCRIPT [NAME=VALUE...]. After one that has
# failed the kernel may be in any state. A boot also ends when too little memory is free: not every
# kernel frees that of disks in memory.
. "$LAB_DIR/lib-check.sh"; . "$LAB_DIR/lib-state.sh"
export LAB_PIDS LAB_STATE=/dev/shm/lab-state
: >$LAB_PIDS
ip netns add lab; ip netns del lab # which leaves a mount
state_kernel >$LAB_STATE
while read -r name limit script settings; do
  echo "$name $limit" >/run/out/current
  echo "lab: begin of $name"
  dmesg -C
  # shellcheck disable=SC2086  # settings have no blanks
  run "$name" "$limit" "/run/host$script" $settings </dev/null
  ended "$name" $rc $took
  [ $rc = 0 ] || [ $rc = 77 ] || break
  find /tmp /run -mindepth 1 -xdev ! -path /run/out ! -path /run/host ! -path /run/cpuinfo \
    ! -path /run/netns -delete 2>/dev/null
  free=$(awk '{v[$1] = $2} END {print int(100 * v["MemAvailable:"] / v["MemTotal:"])}' \
    /proc/meminfo)
  [ "$free" -ge 50 ] || { echo "lab: only $free % of the memory are free"; break; }
done </run/out/list
off
