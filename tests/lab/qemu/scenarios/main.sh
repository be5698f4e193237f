# The main scenarios in one boot: discover, connect over soft RoCE and over TCP, fio with checksums,
# a file system.
# variants: rxe
# covers: fabric/tcp fabric/rdma nvme/target
# cpus: 2
# limit: 540
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:256MiB)
TARGET_LISTENERS=tcp/10.0.0.1/4421
lab_up; target_start
for t in rdma/4420 tcp/4421; do
  TRTYPE=${t%/*} PORT=${t#*/}
  say "discover over $TRTYPE"
  discover >/tmp/discovery
  grep "^subnqn: *$NQN\$" /tmp/discovery || fail "the discovery log does not list $NQN"
  say "connect over $TRTYPE"
  host_connect
  nvme list
  nvme id-ctrl "/dev/$CTRL" >/dev/null; nvme smart-log "/dev/$CTRL" | head -n 4
  fio_verify $TRTYPE-qd1 --iodepth=1 --bs=4k --size=512k
  fio_verify $TRTYPE-qd32 --iodepth=32 --bs=4k --size=4M
  fio_verify $TRTYPE-large --iodepth=8 --bs=512k --size=16M
  mkfs.ext4 -q -F "$DEV"; mkdir -p /tmp/fs; mount "$DEV" /tmp/fs
  cp -r /usr/share/perl5 /tmp/fs/; umount /tmp/fs
  e2fsck -fn "$DEV" >/tmp/check 2>&1 || { cat /tmp/check; fail "the file system is damaged"; }
  mount "$DEV" /tmp/fs
  diff -r /usr/share/perl5 /tmp/fs/perl5 || fail "files differ"
  umount /tmp/fs
  host_disconnect
done
klog_check
target_stop
