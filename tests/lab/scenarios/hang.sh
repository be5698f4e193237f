# A disk stops answering, with everything that fio has in flight on it: the host is told to try again, keeps its connection, and the other
# namespace's fio notices nothing. Resets and disconnects do not wait for the disk. When it answers again all is as before, and the data
# verify. All of it once more with io_uring forbidden, where threads hang in the kernel.
# variants: tcp rxe
# limit: 470
. "$LAB_DIR/lib.sh"
need dmsetup
disk_up
dmsetup create lab --table "0 131072 linear /dev/ram1 0" || fail "dmsetup create"
dmsetup mknodes
NAMESPACES=(1:block::/dev/mapper/lab 2:file:64MiB:/run/disk/2.img:4096)
eval "plain_$(declare -f target_config)"
target_config() { plain_target_config | sed 's/backend: "block"/&, io_timeout: 2s/'; }
lab_up
hang() { dmsetup suspend --noflush --nolockfs lab; }
answer() { dmsetup resume lab; }
fio_on() { DEV=$(namespace_device "$1"); shift; fio_verify "$@"; }
completed() { awk '{print $1 + $5}' "/sys/block/$(basename "$1")/stat"; }
read_status() { nvme read "$(namespace_device "$1")" --namespace-id="$1" --start-block=0 --block-count=7 --data-size=4096 --data=/dev/null 2>&1 || true; }
logged() { [ "$(grep -c "$1" /run/target.log)" -ge "$2" ]; }
moving() { [ $(($(completed "$(namespace_device 1)") - idle)) -ge 100 ]; } # fio is at work on namespace 1
# busy: a read of namespace 1 is under way. A second later it hangs in the disk, or in the thread that is to begin it.
busy() { local r w; read -r r w <"/sys/block/$(basename "$(namespace_device 1)")/inflight"; [ $((r + w)) -gt 0 ]; }
reconnects() { dmesg | grep -cE 'Reconnecting|timeout' || true; }

hangs() {
  host_connect
  other=$(namespace_device 2) idle=$(completed "$(namespace_device 1)") before=$(reconnects)
  fio_on 2 other --iodepth=8 --bs=4k --size=8M --time_based --runtime=20 & fio2=$!
  fio_on 1 hung --iodepth=32 --bs=16k --size=24M --rate_iops=300,300 & fio1=$!
  wait_for 15 moving
  hang
  wait_for 20 logged 'does not answer' "$1"
  n=$(completed "$other"); sleep 2; n=$(($(completed "$other") - n))
  say "the disk hangs; within 2 s the other namespace completed $n commands"
  [ $n -ge 100 ] || fail "the other namespace hangs too"
  s=$(read_status 1); grep -qiE 'internal path error|0x2?300' <<<"$s" || fail "a read from a disk that hangs: $s"
  ctrl_live || fail "the controller is not live"
  answer
  wait_for 15 logged 'answers again' "$1"
  wait $fio1 || fail "fio on the disk that hung: exit code $?"
  wait $fio2 || fail "the other namespace's fio: exit code $?"
  [ "$(reconnects)" = "$before" ] || fail "the host gave the connection up"
  fio_on 1 after --iodepth=16 --bs=16k --size=4M

  say "reset and disconnect while the disk hangs"
  hang
  dd if="$(namespace_device 1)" of=/dev/null bs=64k iflag=direct status=none 2>/dev/null & reader=$!
  wait_for 10 busy; sleep 1
  start=$(date +%s)
  nvme reset "/dev/$CTRL" || fail "nvme reset: exit code $?"
  wait_for 15 ctrl_live
  fio_on 2 reset --iodepth=8 --bs=16k --size=2M
  host_disconnect
  say "they took $(($(date +%s) - start)) s"
  [ $(($(date +%s) - start)) -le 25 ] || fail "they waited for the disk"
  wait $reader || true
  answer
  host_connect
  fio_on 1 again --iodepth=16 --bs=16k --size=4M
  host_disconnect
}
target_start; hangs 1; target_stop

sysctl -qw kernel.io_uring_disabled=2
: >/run/target.log
target_start
grep -q 'io_uring cannot be used' /run/target.log || fail "io_uring is not forbidden"
sysctl -qw kernel.io_uring_disabled=0 # fio's turn
hangs 1; target_stop

say "the target ends although the disk hangs"
target_start; host_connect
hang
dd if="$(namespace_device 1)" of=/dev/null bs=64k iflag=direct status=none 2>/dev/null & reader=$!
wait_for 10 busy; sleep 1
kill -TERM "$TPID"
wait_for 20 ours_gone
rc=0; wait "$TPID" || rc=$?
[ $rc = 1 ] || fail "exit code $rc, want 1: not everything was closed"
answer
nvme disconnect -n $NQN >/dev/null; wait $reader || true
