# Sparse files on a file system that fills up: the write that finds no space gets Capacity Exceeded,
# and the host ENOSPC. Earlier data verifies, flushes succeed, a namespace with allocated space is
# not affected, and a discard frees space again.
# variants: tcp rxe
# covers: backend/file backend/disk internal/storage
. "$LAB_DIR/lib.sh"
mkdir -p /run/ext4 /run/xfs
dm ext4 "0 655360 linear /dev/ram1 0"; dm xfs "0 655360 linear /dev/ram1 655360"
mkfs.ext4 -q -F -m 0 /dev/mapper/ext4; mkfs.xfs -q -f /dev/mapper/xfs
for fs in ext4 xfs; do mount /dev/mapper/$fs /run/$fs; done
target_config() {
  cat <<EOT
listeners: [{transport: $TRTYPE, address: "$ADDR", port: $PORT}]
subsystems:
  - nqn: $NQN
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: file, path: /run/ext4/1.img, size: 1GiB, block_size: 4096}
      - {nsid: 2, backend: file, path: /run/xfs/2.img, size: 1GiB, block_size: 4096}
      - nsid: 3
        backend: file
        path: /run/ext4/3.img
        size: 64MiB
        block_size: 4096
        preallocate: full
EOT
}
NAMESPACES=(1 2 3)
lab_up; target_start; host_connect

for nsid in 1 2; do
  case $nsid in 1) fs=ext4 ;; 2) fs=xfs ;; esac
  fio_on 3 beside --iodepth=8 --bs=4k --size=64M --time_based --runtime=6 & beside=$!
  fio_on $nsid "$fs-before" --iodepth=16 --bs=64k --size=32M
  dd if=/dev/zero of="$DEV" bs=1M seek=64 oflag=direct 2>/tmp/dd &&
    fail "$fs: 1 GiB fits into 320 MiB"
  grep -q 'No space left on device' /tmp/dd || { cat /tmp/dd; fail "$fs: not ENOSPC"; }
  say "$fs: $(df -m --output=avail /run/$fs | tail -n 1) MiB are left" \
    "after $(grep -o '^[0-9]* bytes' /tmp/dd)"
  head -c 1048576 /dev/zero >/tmp/block
  s=$(nvme write "$DEV" --namespace-id=$nsid --start-block=$((900 * 256)) --block-count=255 \
    --data-size=1048576 --data=/tmp/block 2>&1 || true)
  grep -qiE 'capacity|0x4?081' <<<"$s" || fail "$fs: a write without space: $s"
  say "$fs: $s"
  flush_works $nsid
  fio --name="$fs-before" --filename="$DEV" --direct=1 --ioengine=io_uring --thread --rw=randwrite \
    --iodepth=16 --bs=64k --size=32M --verify=crc32c --verify_fatal=1 --verify_only \
    --randrepeat=1 >/tmp/fio.out 2>&1 ||
    { cat /tmp/fio.out; fail "$fs: what was written before is damaged"; }
  wait $beside || fail "fio on the namespace with allocated space: exit code $?"
  blkdiscard -o $((64 << 20)) -l $((128 << 20)) "$DEV" || fail "$fs: blkdiscard"
  dd if=/dev/zero of="$DEV" bs=1M seek=64 count=16 oflag=direct 2>/tmp/dd ||
    { cat /tmp/dd; fail "$fs: a discard freed no space"; }
done

say "neither a discard nor zeroes free allocated space"
DEV=$(namespace_device 3)
blkdiscard "$DEV" 2>/dev/null || say "it does not support discards"
blkdiscard -z "$DEV" || fail "write zeroes"
[ "$(du -m /run/ext4/3.img | cut -f1)" -ge 64 ] ||
  fail "3.img has $(du -m /run/ext4/3.img | cut -f1) MiB left"
host_disconnect; target_stop
errors='I/O error|I/O Error|critical (space allocation|target) error|lost async page write'
klog_check "$errors|EXT4-fs|Capacity Exceeded"
