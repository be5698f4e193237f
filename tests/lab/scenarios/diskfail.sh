# A disk under load begins to fail every command, and works again: the host gets media errors with
# the status for the direction, the target goes on, fio on the other namespace is not affected, and
# afterwards the data verifies. All of it once more with io_uring forbidden: threads do the work,
# with one warning.
# variants: tcp rxe
# soak: soft
# root: soft
# covers: backend/disk backend/block internal/storage internal/uring internal/ratelog internal/event
# limit: 400
. "$LAB_DIR/lib.sh"
need dmsetup
disk_up
linear="0 131072 linear /dev/ram1 0"
dm lab "$linear"
NAMESPACES=(1:block::/dev/mapper/lab 2:file:64MiB:/run/disk/2.img:4096)
lab_up
head -c 4096 /dev/zero >/tmp/block

fails() {
  host_connect
  fio_on 2 other --iodepth=8 --bs=4k --size=32M --time_based --runtime=8 & other=$!
  DEV=$(namespace_device 1)
  fio --name=load --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k \
    --iodepth=16 --time_based --runtime=3 --continue_on_error=all --thread >/dev/null 2>&1 & load=$!
  io_mark; wait_for 10 io_moved 100
  dm_table lab "0 131072 error"
  wait $load || true
  ctrl_live || fail "the controller is not live"
  io_fails "$READ_ERROR" read 1
  io_fails "$WRITE_FAULT" write 1
  [ -e /proc/$TPID ] || fail "the target has ended"
  dm_table lab "$linear"
  wait $other || fail "fio on the other namespace: exit code $?"
  fio_verify after --iodepth=16 --bs=4k --size=16M
  host_disconnect; target_stop
}
target_start; fails

sysctl -qw kernel.io_uring_disabled=2
target_start
logged "io_uring cannot be used"
[ "$(log_count "io_uring cannot be used")" = 1 ] || fail "more than one warning about io_uring"
logged "kernel.io_uring_disabled=0" # how to fix it
sysctl -qw kernel.io_uring_disabled=0 # for fio
fails
