# Files and devices grow and shrink under fio: the host learns of it by itself, uses what is new, and gets LBA out of range behind what is
# left, never anything else. The data verify throughout.
# variants: tcp rxe
# limit: 310
. "$LAB_DIR/lib.sh"
need losetup dmsetup
disk_up
truncate -s 64M /run/disk/backing
loop=$(losetup -f --show --direct-io=on /run/disk/backing)
dmsetup create lab --table "0 131072 linear /dev/ram1 0" || fail "dmsetup create"
dmsetup mknodes
NAMESPACES=(1:file:64MiB:/run/disk/1.img:4096 "2:block::$loop" 3:block::/dev/mapper/lab)
lab_up; target_start; host_connect
resize() { # NSID MIB
  case $1 in
    1) truncate -s "$2M" /run/disk/1.img ;;
    2) truncate -s "$2M" /run/disk/backing; losetup -c "$loop" ;;
    3) dmsetup suspend lab; dmsetup load lab --table "0 $(($2 * 2048)) linear /dev/ram1 0"; dmsetup resume lab ;;
  esac
}
is() { [ "$(blockdev --getsize64 "$(namespace_device "$1")")" = $(($2 << 20)) ]; }
read_at() { # NSID MIB: one block of 4 KiB there
  local dev bs; dev=$(namespace_device "$1"); bs=$(blockdev --getss "$dev")
  nvme read "$dev" --namespace-id="$1" --start-block=$((($2 << 20) / bs)) --block-count=$((4096 / bs - 1)) --data-size=4096 --data=/dev/null 2>&1 || true
}
for nsid in 1 2 3; do
  DEV=$(namespace_device $nsid)
  fio_verify "ns$nsid" --iodepth=16 --bs=4k --size=4M --time_based --runtime=9 & load=$!
  sleep 1
  for size in 128 32 96 64; do
    resize $nsid $size
    wait_for 15 is $nsid $size
    s=$(read_at $nsid $((size - 1))); ! grep -qi 'status' <<<"$s" || fail "namespace $nsid of $size MiB: the last MiB: $s"
    s=$(read_at $nsid $size); grep -qiE 'LBA out of range|0x[46]?080' <<<"$s" || fail "namespace $nsid of $size MiB: behind the end: $s"
  done
  wait $load || fail "fio on namespace $nsid: exit code $?"
  resize $nsid 128; wait_for 15 is $nsid 128
  fio_verify "end$nsid" --iodepth=8 --bs=256k --offset=112M --size=16M
  resize $nsid 32 # and nobody waits for it
  for at in 127 32; do
    s=$(read_at $nsid $at); grep -qiE 'LBA out of range|0x[46]?080' <<<"$s" || fail "namespace $nsid at once after it shrank: $s"
  done
  wait_for 15 is $nsid 32
done
ctrl_live || fail "the controller is not live"
host_disconnect; target_stop
