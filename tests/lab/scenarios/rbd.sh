# An RBD image of a Ceph cluster as a namespace: file system, verified writes while the OSD does not
# answer for a while (in full longer than io_timeout, so that the target fences itself), and a resized
# image. The host loses no write and its connection stays. It is skipped where Ceph's daemons are
# missing.
# variants: tcp rxe
# covers: backend/rbd internal/rados nvme/target
# cpus: 2
# limit: 600
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-ceph.sh"
[ "$TARGET" = ours ] || skip "the kernel's target has no images of Ceph"
NAMESPACES=(1:rbd)
target_config() {
  cat <<EOF
listeners: [{transport: $TRTYPE, address: "$ADDR", port: $PORT}]
subsystems:
  - nqn: $NQN
    allow_any_host: true
    namespaces: [{nsid: 1, backend: rbd, image: rbd/disk, ceph: {conf: $CEPH/ceph.conf}}]
EOF
}
lab_up
began=$SECONDS
ceph_up
of_ceph rbd create --size 64M rbd/disk
say "the cluster took $((SECONDS - began)) s"
target_start; host_connect

say "file system"
mkdir -p /tmp/fs; mkfs.ext4 -q "$DEV"; mount "$DEV" /tmp/fs
head -c 8M /dev/urandom >/tmp/fs/file; sum=$(sha256sum </tmp/fs/file); umount /tmp/fs
mount "$DEV" /tmp/fs
[ "$(sha256sum </tmp/fs/file)" = "$sum" ] || fail "the file differs"
umount /tmp/fs
e2fsck -fn "$DEV" >/tmp/check 2>&1 || { cat /tmp/check; fail "ext4 is damaged"; }

say "verified writes, and an OSD that does not answer"
fio_verify blocks --bs=4k --iodepth=16 --size=4M
load stopped --bs=16k --iodepth=8 --size=16M
wait_for 20 load_moved 50
kill -STOP $CEPH_OSD
sleep $(sized 3 5 30) # that is the fault: an OSD is away for so long
kill -CONT $CEPH_OSD
wait_for 60 load_moved 50
load_ends
if measuring; then # no other client breaks locks
  of_ceph ceph osd blocklist ls
  grep -q 127.0.0.1: $CEPH/out || fail "the target has not fenced its connection"
fi
ctrl_live || fail "the host has lost its connection"

say "resized"
of_ceph rbd resize --size 96M rbd/disk
larger() { [ "$(blockdev --getsize64 "$DEV")" = $((96 << 20)) ]; }
wait_for 30 larger
fio_verify tail --bs=64k --iodepth=4 --offset=80M --size=8M
klog_check "lbd: capacity"
host_disconnect
target_stop
ceph_down
