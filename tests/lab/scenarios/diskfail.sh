# A disk under load begins to fail every command, and works again: the host gets media errors with the status of the direction, the
# target lives, the other namespace's fio notices nothing, and afterwards the data verify. All of it once more with io_uring forbidden:
# threads take over, with one warning.
# variants: tcp rxe
# limit: 230
. "$LAB_DIR/lib.sh"
need dmsetup
disk_up
linear="0 131072 linear /dev/ram1 0"
dmsetup create lab --table "$linear" || fail "dmsetup create"
dmsetup mknodes
NAMESPACES=(1:block::/dev/mapper/lab 2:file:64MiB:/run/disk/2.img:4096)
lab_up
table() { dmsetup suspend --noflush lab; dmsetup load lab --table "$1"; dmsetup resume lab; }
status() { nvme "$@" --namespace-id=1 --start-block=0 --block-count=7 --data-size=4096 --data=/tmp/block 2>&1 || true; }
head -c 4096 /dev/zero >/tmp/block

fails() {
  host_connect
  DEV=$(namespace_device 2)
  fio_verify other --iodepth=8 --bs=4k --size=32M --time_based --runtime=8 & other=$!
  DEV=$(namespace_device 1)
  fio --name=load --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k --iodepth=16 --time_based --runtime=3 \
    --continue_on_error=all --thread >/dev/null 2>&1 & load=$!
  sleep 1
  table "0 131072 error"
  wait $load || true
  ctrl_live || fail "the controller is not live"
  s=$(status read "$DEV"); grep -qiE 'unrecovered|0x2?281' <<<"$s" || fail "a failed read: $s"
  s=$(status write "$DEV"); grep -qiE 'write fault|0x2?280' <<<"$s" || fail "a failed write: $s"
  [ -e /proc/$TPID ] || fail "the target is gone"
  table "$linear"
  wait $other || fail "the other namespace's fio: exit code $?"
}
target_start; fails
fio_verify after --iodepth=16 --bs=4k --size=16M
host_disconnect; target_stop

sysctl -qw kernel.io_uring_disabled=2
target_start
[ "$(grep -c 'io_uring cannot be used' /run/target.log)" = 1 ] || fail "not one warning that io_uring is forbidden"
grep -q 'kernel.io_uring_disabled=0' /run/target.log || fail "the warning does not say how to mend it"
sysctl -qw kernel.io_uring_disabled=0 # fio's turn
fails
fio_verify after --iodepth=16 --bs=4k --size=16M
host_disconnect; target_stop
