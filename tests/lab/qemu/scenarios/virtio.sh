# A namespace on a virtio disk: fio with checksums over soft RoCE, then over TCP, with 4, 64 and
# 1024 KiB; a discard frees space in the backing store of the disk, and zeroes are written there.
# variants: rxe
# covers: backend/block backend/disk
# virtio: 256M
# cpus: 2
# limit: 600
. "$LAB_DIR/lib.sh"
need blkdiscard
disk=/dev/vdb
wait_for 30 test -b $disk
NAMESPACES=("1:block::$disk")
lab_up
used() { du -m /run/out/virtio.img | cut -f1; }
for TRTYPE in rdma tcp; do
  target_start; host_connect
  for work in 4k:2M 64k:8M 1M:32M; do
    fio_verify "$TRTYPE-${work%:*}" --iodepth=32 --bs=${work%:*} --size=${work#*:}
  done
  fio_run "$TRTYPE-fua" --rw=randwrite --sync=dsync --bs=4k --iodepth=4 --size=4M --io_size=256k
  head -c 16M /dev/urandom >/tmp/random
  dd if=/tmp/random of="$DEV" bs=1M seek=64 oflag=direct status=none; before=$(used)
  blkdiscard -o 64M -l 8M "$DEV" || fail "blkdiscard"
  say "$TRTYPE: a discard of 8 MiB made $before MiB of the backing store $(used)"
  [ $((before - $(used))) -ge 7 ] || fail "the space was not freed"
  blkdiscard -z -o 72M -l 4M "$DEV" || fail "write zeroes"
  host_disconnect; target_stop
  cmp <(head -c 4M /dev/zero; tail -c 4M /tmp/random) \
    <(dd if=$disk bs=1M skip=72 count=8 iflag=direct status=none) ||
    fail "the disk does not have what was written"
done
