# Files and devices grow and shrink under fio: the host notices by itself, uses the new space, and
# gets LBA Out of Range past the new end, never anything else. The data verifies throughout.
# variants: tcp rxe
# soak: soft
# root: soft
# covers: backend/disk backend/file backend/block internal/volumes nvme/target nvme/target/namespaces
# limit: 640
. "$LAB_DIR/lib.sh"
need losetup dmsetup
disk_up
truncate -s 64M /run/disk/backing
loop=$(losetup -f --show --direct-io=on /run/disk/backing)
dm lab "0 131072 linear /dev/ram1 0"
NAMESPACES=(1:file:64MiB:/run/disk/1.img:4096 "2:block::$loop" 3:block::/dev/mapper/lab)
lab_up; target_start; host_connect
resize() { # NSID MIB
  case $1 in
    1) truncate -s "$2M" /run/disk/1.img ;;
    2) truncate -s "$2M" /run/disk/backing; losetup -c "$loop" ;;
    3)
      dmsetup suspend lab; dmsetup load lab --table "0 $(($2 * 2048)) linear /dev/ram1 0"
      dmsetup resume lab ;;
  esac
}
is() { [ "$(blockdev --getsize64 "$(namespace_device "$1")")" = $(($2 << 20)) ]; }
for nsid in 1 2 3; do
  fio_on $nsid "ns$nsid" --iodepth=16 --bs=4k --size=4M --time_based --runtime=9 & load=$!
  DEV=$(namespace_device $nsid); io_mark; wait_for 10 io_moved 100
  for size in 128 32 96 64; do
    resize $nsid $size
    wait_for 15 is $nsid $size
    io_works read $nsid $((size - 1 << 20))
    io_fails "$OUT_OF_RANGE" read $nsid $((size << 20))
  done
  wait $load || fail "fio on namespace $nsid: exit code $?"
  resize $nsid 128; wait_for 15 is $nsid 128
  fio_on $nsid "end$nsid" --iodepth=8 --bs=256k --offset=112M --size=16M
  resize $nsid 32 # without waiting
  for at in 127 32; do io_fails "$OUT_OF_RANGE" read $nsid $((at << 20)); done
  wait_for 15 is $nsid 32
done
ctrl_live || fail "the controller is not live"
host_disconnect; target_stop
