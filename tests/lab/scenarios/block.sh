# Namespaces on block devices: a loop device, device-mapper on brd, and beside them files on ext4 and xfs. fio verifies all; what the host
# discards or zeroes is seen by the backing store, and the space of a file comes back; a mounted device is refused by name.
# variants: rxe tcp
# go-test: ./backend/block
# limit: 360
. "$LAB_DIR/lib.sh"
need losetup dmsetup blkdiscard
disk_up
truncate -s 256M /run/disk/backing
loop=$(losetup -f --show --direct-io=on /run/disk/backing)
dmsetup create lab --table "0 524288 linear /dev/ram1 0" || fail "dmsetup create"
dmsetup mknodes
dm=/dev/mapper/lab
dmsetup create xfs --table "0 1048576 linear /dev/ram1 4194304"; dmsetup mknodes
mkfs.xfs -q -f /dev/mapper/xfs; mkdir -p /run/xfs; mount /dev/mapper/xfs /run/xfs

if [ "$TRANSPORT" = rxe ]; then # the devices themselves, below the fabric
  dmsetup create small --table "0 32768 linear /dev/ram1 1048576"; dmsetup mknodes
  for dev in /dev/mapper/small "$(null_blk conf 16MiB 1 512)"; do
    NVMF_TEST_BLOCK=$dev "$TEST_BIN" -test.v -test.run 'TestDevice/^(threads|io_uring)$' -test.timeout 100s >/run/conf.log 2>&1 || { grep -vE '^=== RUN|--- PASS' /run/conf.log | tail -n 60; fail "the suite does not pass on $dev"; }
    grep -q '^ *--- PASS: TestDevice/io_uring' /run/conf.log || fail "the suite did not run with io_uring"
    say "$dev: $(grep -c '^ *--- PASS' /run/conf.log) tests passed"
  done
  dmsetup remove small
fi

NAMESPACES=("1:block::$loop" "2:block::$dm" 3:file:256MiB:/run/disk/3.img:4096 4:file:256MiB:/run/xfs/4.img:4096)
lab_up

mkdir -p /tmp/mounted; mkfs.ext4 -q -F $loop; mount $loop /tmp/mounted
target_config >/run/target.yaml
"$TARGET_BIN" check --config /run/target.yaml >/tmp/check 2>&1 && fail "a mounted device is accepted"
grep -q "\"$loop\" is in use: /tmp/mounted" /tmp/check || { cat /tmp/check; fail "check does not say who uses the device"; }
umount /tmp/mounted

target_start; host_connect
target_held() { losetup -l | grep -q "$loop" && ! mount $loop /tmp/mounted 2>/dev/null; }
target_held || fail "the device can be mounted while the target has it"
sectors_read() { awk '{print $3}' "/sys/block/$(dmsetup info -c --noheadings -o blkdevname xfs)/stat"; }
used() { sync -f "$1"; du -B1 "$1" | cut -f1; }

for nsid in 1 2 3 4; do
  DEV=$(namespace_device $nsid)
  for work in 4k:8M 64k:32M 1M:64M; do fio_verify "ns$nsid-${work%:*}" --iodepth=32 --bs=${work%:*} --size=${work#*:}; done
  fio_run "ns$nsid-fua" --rw=randwrite --sync=dsync --bs=4k --iodepth=4 --size=16M --io_size=2M
done

for nsid in 1 3 4; do
  case $nsid in 1) file=/run/disk/backing ;; 3) file=/run/disk/3.img ;; 4) file=/run/xfs/4.img ;; esac
  DEV=$(namespace_device $nsid)
  head -c 64M /dev/urandom | tee /tmp/random >/run/random; rm /run/random
  dd if=/tmp/random of="$DEV" bs=1M oflag=direct status=none; before=$(used $file)
  blkdiscard -o 0 -l 32M "$DEV" || fail "blkdiscard on namespace $nsid"
  after=$(used $file)
  say "namespace $nsid: a discard of 32 MiB made $((before >> 20)) MiB of $file $((after >> 20))"
  [ $((before - after)) -ge $((30 << 20)) ] || fail "the space did not come back"
  if [ $nsid = 4 ]; then
    before=$(sectors_read)
    cmp -s <(head -c 32M /dev/zero) <(dd if="$DEV" bs=1M count=32 iflag=direct status=none) || fail "what was discarded does not read as zeroes"
    [ $(($(sectors_read) - before)) -le 256 ] || fail "reading 32 MiB that were discarded, the disk was asked for $(($(sectors_read) - before)) sectors"
  fi
  cmp -s <(tail -c 32M /tmp/random) <(dd if=$file bs=1M skip=32 count=32 iflag=direct status=none) || fail "what was not discarded is damaged"
  blkdiscard -z -o 32M -l 16M "$DEV" || fail "write zeroes on namespace $nsid"
  cmp -s <(head -c 16M /dev/zero) <(dd if=$file bs=1M skip=32 count=16 iflag=direct status=none) || fail "zeroes are not in $file"
  cmp -s <(tail -c 16M /tmp/random) <(dd if=$file bs=1M skip=48 count=16 iflag=direct status=none) || fail "zeroes went too far"
  rm /tmp/random
done

vwc=$(nvme id-ctrl "/dev/$CTRL" -o json | jq .vwc)
[ $((vwc & 1)) = 1 ] || fail "a loop device and a file have volatile caches, but VWC is $vwc"
host_disconnect
target_stop
mount $loop /tmp/mounted 2>/dev/null && umount /tmp/mounted # free again, whatever is on it
dmsetup remove lab || fail "the target still holds $dm"
losetup -d $loop
klog_check "$loop: Can't open blockdev" # mount, when it was refused
