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
# Shortly before the time limit: show what runs, the target's goroutines and log, the kernel's log.
(
  sleep $((LAB_LIMIT > 20 ? LAB_LIMIT - 8 : LAB_LIMIT / 2))
  echo "lab: $SECONDS s of $LAB_LIMIT s have passed; these processes run:"
  ps -o pid,stat,wchan:20,args --ppid 2 -N | grep -v ' ps ' | cut -c1-160
  for p in $(pgrep -x nvme); do echo "nvme:"; cat "/proc/$p/stack"; done 2>/dev/null
  rdma resource show cm_id; rdma resource show qp
  tail -n 40 /run/target.log
  if [ -e /run/target.pid ]; then
    kill -QUIT "$(cat /run/target.pid)"; sleep 0.5
    tail -n 150 /run/target.log | grep -v '^r[0-9a-z]* '
  fi
  dmesg | sed '1,/lab: mark/d' | tail -n 30
) & watchdog=$!
: >/run/out/began
bash "$LAB_SCRIPT"; rc=$?
kill $watchdog
case $rc in
  0 | 77) ;;
  *)
    echo "lab: the last lines of the kernel's log since the set-up:"
    dmesg | sed '1,/lab: mark/d' | tail -n 40 ;;
esac
echo "lab: end, exit code $rc"
echo $rc >/run/out/rc; sync
echo o >/proc/sysrq-trigger; sleep 5
