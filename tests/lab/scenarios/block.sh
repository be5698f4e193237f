# Namespaces on block devices: a loop device, device-mapper on brd, and files on ext4 and xfs beside
# them. fio verifies all. Discards and zeroes of the host arrive at the backing store, and a file
# gives its space back. A mounted device is refused by name.
# variants: rxe tcp
# covers: backend backend/block backend/file backend/disk internal/uring internal/storage
# go-test: ./backend/block
# limit: 720
. "$LAB_DIR/lib.sh"
need losetup dmsetup blkdiscard
disk_up
truncate -s 256M /run/disk/backing
loop=$(losetup -f --show --direct-io=on /run/disk/backing)
dm lab "0 524288 linear /dev/ram1 0"
dm=/dev/mapper/lab
dm xfs "0 1048576 linear /dev/ram1 4194304"
mkfs.xfs -q -f /dev/mapper/xfs; mkdir -p /run/xfs; mount /dev/mapper/xfs /run/xfs

if [ "$TRANSPORT" = rxe ] || [ -n "$SAMPLE" ]; then # the devices without the fabric
  dm small "0 32768 linear /dev/ram1 1048576"
  for dev in /dev/mapper/small "$(null_blk conf 16MiB 1 512)"; do
    NVMF_TEST_BLOCK=$dev "$TEST_BIN" -test.v -test.run 'TestDevice/^(threads|io_uring)$' \
      -test.timeout 100s >/run/conf.log 2>&1 ||
      { grep -vE '^=== RUN|--- PASS' /run/conf.log | tail -n 60; fail "the suite fails on $dev"; }
    grep -q '^ *--- PASS: TestDevice/io_uring' /run/conf.log ||
      fail "the suite did not run with io_uring"
    say "$dev: $(grep -c '^ *--- PASS' /run/conf.log) tests passed"
  done
  dmsetup remove small
fi

NAMESPACES=("1:block::$loop" "2:block::$dm" 3:file:256MiB:/run/disk/3.img:4096
  4:file:256MiB:/run/xfs/4.img:4096)
lab_up

mkdir -p /tmp/mounted; mkfs.ext4 -q -F $loop; mount $loop /tmp/mounted
target_config >/run/target.yaml
"$TARGET_BIN" check --config /run/target.yaml >/tmp/check 2>&1 &&
  fail "a mounted device is accepted"
grep -q "\"$loop\" is in use: mounted at /tmp/mounted" /tmp/check ||
  { cat /tmp/check; fail "check does not say who uses the device"; }
umount /tmp/mounted

target_start; host_connect
target_has_loop() { losetup -l | grep -q "$loop" && ! mount $loop /tmp/mounted 2>/dev/null; }
target_has_loop || fail "the device can be mounted while the target uses it"
sectors_read() { awk '{print $3}' "/sys/block/$(dm_block xfs)/stat"; }
used() { sync -f "$1"; du -B1 "$1" | cut -f1; }

for nsid in 1 2 3 4; do
  for work in 4k:8M 64k:32M 1M:64M; do
    fio_on $nsid "ns$nsid-${work%:*}" --iodepth=32 --bs=${work%:*} --size=${work#*:}
  done
  fio_run "ns$nsid-fua" --rw=randwrite --sync=dsync --bs=4k --iodepth=4 --size=16M --io_size=2M
done

mib() { dd bs=1M skip="$2" count="$3" iflag=direct status=none if="$1"; } # FILE AT COUNT
for nsid in 1 3 4; do
  case $nsid in
    1) file=/run/disk/backing ;; 3) file=/run/disk/3.img ;; 4) file=/run/xfs/4.img ;;
  esac
  DEV=$(namespace_device $nsid)
  head -c 64M /dev/urandom | tee /tmp/random >/run/random; rm /run/random
  dd if=/tmp/random of="$DEV" bs=1M oflag=direct status=none; before=$(used $file)
  blkdiscard -o 0 -l 32M "$DEV" || fail "blkdiscard on namespace $nsid"
  after=$(used $file)
  say "namespace $nsid: a discard of 32 MiB made $((before >> 20)) MiB of $file $((after >> 20))"
  [ $((before - after)) -ge $((30 << 20)) ] || fail "the space was not freed"
  if [ $nsid = 4 ]; then
    before=$(sectors_read)
    cmp -s <(head -c 32M /dev/zero) <(mib "$DEV" 0 32) ||
      fail "discarded blocks do not read as zeroes"
    read_now=$(($(sectors_read) - before))
    [ $read_now -le 256 ] ||
      fail "reading 32 MiB of discarded blocks has read $read_now sectors of the disk"
  fi
  cmp -s <(tail -c 32M /tmp/random) <(mib $file 32 32) ||
    fail "blocks that were not discarded are damaged"
  blkdiscard -z -o 32M -l 16M "$DEV" || fail "write zeroes on namespace $nsid"
  cmp -s <(head -c 16M /dev/zero) <(mib $file 32 16) || fail "zeroes are not in $file"
  cmp -s <(tail -c 16M /tmp/random) <(mib $file 48 16) || fail "too much was zeroed"
  rm /tmp/random
done

vwc=$(nvme id-ctrl "/dev/$CTRL" -o json | jq .vwc)
[ $((vwc & 1)) = 1 ] || fail "a loop device and a file have volatile caches, but VWC is $vwc"
host_disconnect
target_stop
mount $loop /tmp/mounted 2>/dev/null && umount /tmp/mounted # unused again, with any content
dmsetup remove lab || fail "the target still uses $dm"
losetup -d $loop
klog_check "$loop: Can't open blockdev" # the refused mount
