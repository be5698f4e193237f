# A disk stops answering, with everything that fio has in flight on it: the host is told to try
# again and keeps its connection, and fio on the other namespace is not affected. Resets and
# disconnects do not wait for the disk. When it answers again, everything is as before, and the data
# verifies. All of it once more with io_uring forbidden, where threads hang in the kernel.
# variants: tcp rxe
# covers: backend/disk backend/block internal/storage internal/reactor
# limit: 560
. "$LAB_DIR/lib.sh"
need dmsetup
disk_up
dm lab "0 131072 linear /dev/ram1 0"
NAMESPACES=(1:block::/dev/mapper/lab 2:file:64MiB:/run/disk/2.img:4096)
copy_function target_config plain_config
target_config() { plain_config | sed 's/backend: "block"/&, io_timeout: 2s/'; }
lab_up
hang() { dmsetup suspend --noflush --nolockfs lab; }
answer() { dmsetup resume lab; }
# fio has started its work on namespace 1.
moving() { [ $(($(completed "$(namespace_device 1)") - idle)) -ge 100 ]; }
# A read of namespace 1 is in flight. A second later it hangs in the disk, or in the thread that is
# to start it.
busy() {
  local r w
  read -r r w <"/sys/block/$(basename "$(namespace_device 1)")/inflight"
  [ $((r + w)) -gt 0 ]
}
reads_in_background() {
  dd if="$(namespace_device 1)" of=/dev/null bs=64k iflag=direct status=none 2>/dev/null & reader=$!
  wait_for 10 busy; sleep 1
}
reconnects() { dmesg | grep -cE 'Reconnecting|timeout' || true; }

hangs() {
  host_connect
  idle=$(completed "$(namespace_device 1)") before=$(reconnects)
  DEV=$(namespace_device 2); load other --iodepth=8 --bs=4k --size=2M --time_based --runtime=10
  fio_on 1 hung --iodepth=32 --bs=16k --size=24M --rate_iops=300,300 & fio1=$!
  wait_for 15 moving
  hang
  wait_for 20 log_has "does not answer"
  say "the disk hangs, and the other namespace goes on"
  io_mark; wait_for 20 load_moved 200 # of 8 at a time
  io_fails "$PATH_ERROR" read 1
  ctrl_live || fail "the controller is not live"
  answer
  wait_for 15 log_has "answers again"
  wait $fio1 || fail "fio on the disk that hung: exit code $?"
  load_ends
  [ "$(reconnects)" = "$before" ] || fail "the host has lost its connection"
  fio_on 1 after --iodepth=16 --bs=16k --size=4M

  say "reset and disconnect while the disk hangs"
  hang
  reads_in_background
  start=$(date +%s)
  nvme reset "/dev/$CTRL" || fail "nvme reset: exit code $?"
  wait_for 15 ctrl_live
  fio_on 2 reset --iodepth=8 --bs=16k --size=2M
  host_disconnect
  say "they took $(($(date +%s) - start)) s"
  ! measuring || [ $(($(date +%s) - start)) -le 25 ] || fail "they waited for the disk"
  wait $reader || true
  answer
  host_connect
  fio_on 1 again --iodepth=16 --bs=16k --size=4M
  host_disconnect
}
target_start; hangs; target_stop

sysctl -qw kernel.io_uring_disabled=2
: >/run/target.log
target_start
logged "io_uring cannot be used"
sysctl -qw kernel.io_uring_disabled=0 # for fio
hangs; target_stop

say "the target stops although the disk hangs"
target_start; host_connect
hang
reads_in_background
kill -TERM "$TPID"
wait_for 20 ours_ended
rc=0; wait "$TPID" || rc=$?
[ $rc = 1 ] || fail "exit code $rc, want 1: not everything was closed"
answer
nvme disconnect -n $NQN >/dev/null; wait $reader || true
