# Namespaces in files on persistent memory, ext4 and xfs mounted with -o dax: fio with checksums over TCP and soft RoCE; the file is read
# by the kernel's copy (dax_iomap_rw) only where it cannot be sent from its mapping; discards; a file that is cut off under load.
# variants: rxe
# memmap: 256M!1024M,352M!1312M
# cpus: 2
# limit: 1200
. "$LAB_DIR/lib.sh"
need blkdiscard mkfs.xfs
modprobe -a nd_e820 nd_pmem
for n in 0 1; do wait_for 30 test -b /dev/pmem$n; done
mkfs.ext4 -q -b 4096 /dev/pmem0; mkfs.xfs -q -f /dev/pmem1
for n in 0 1; do mkdir -p /run/pm$n; mount -o dax=always /dev/pmem$n /run/pm$n || fail "mounting /dev/pmem$n with dax"; done
trace=/sys/kernel/tracing
[ -e $trace/kprobe_events ] || mount -t tracefs trace $trace
echo 'p:dax dax_iomap_rw' >$trace/kprobe_events; echo 1 >$trace/events/kprobes/dax/enable
copies() { awk '$1 == "dax" {print $2}' $trace/kprobe_profile; }
# read_all NAME copied|sent: reads the namespace; what the kernel copies of the file is counted.
read_all() {
  local before after; before=$(copies)
  fio_run "$1" --rw=read --bs=64k --iodepth=8 --size=16M
  after=$(copies)
  say "$1: 256 reads, $((after - before)) copies"
  case $2 in copied) [ $((after - before)) -ge 256 ] ;; sent) [ "$after" = "$before" ] ;; esac || fail "$1 is not $2"
}
lab_up

NAMESPACES=(1:file:64MiB:/run/pm0/disk.img:4096 2:file:64MiB:/run/pm1/disk.img:512)
TARGET_LISTENERS=tcp/10.0.0.1/4421
target_start
[ "$(grep -c "a file on DAX is mapped" /run/target.log)" = 2 ] || fail "the files are not mapped"
TRTYPE=tcp PORT=4421
host_connect
for nsid in 1 2; do
  DEV=$(namespace_device $nsid)
  for work in 4k:512k 64k:2M 1M:8M; do fio_verify "tcp-ns$nsid-${work%:*}" --iodepth=8 --bs=${work%:*} --size=${work#*:}; done
  read_all "tcp-ns$nsid" sent
done
DEV=$(namespace_device 1)
fio_run mixed --rw=randrw --bs=4k --iodepth=16 --size=512k --io_size=1M
fio_run fua --rw=randwrite --sync=dsync --bs=4k --iodepth=4 --size=512k
say "discard and write zeroes"
head -c 8M /dev/urandom >/tmp/random
dd if=/tmp/random of="$DEV" bs=1M seek=32 oflag=direct status=none; before=$(du -m /run/pm0/disk.img | cut -f1)
cmp /tmp/random <(dd if="$DEV" bs=1M skip=32 count=8 iflag=direct status=none) || fail "other data than was written"
blkdiscard -o 32M -l 4M "$DEV" || fail "blkdiscard"
after=$(du -m /run/pm0/disk.img | cut -f1)
[ $((before - after)) = 4 ] || fail "a discard of 4 MiB made $before MiB $after"
blkdiscard -z -o 36M -l 2M "$DEV" || fail "write zeroes"
cmp <(head -c 6M /dev/zero; tail -c 2M /tmp/random) <(dd if="$DEV" bs=1M skip=32 count=8 iflag=direct status=none) || fail "other data than zeroes and what was left"
host_disconnect
say "data digests"
host_connect --data-digest
read_all tcp-digest copied
host_disconnect
if grep "mapped files is copied" /run/target.log; then fail "RDMA was not used yet"; fi

say "soft RoCE"
TRTYPE=rdma PORT=4420
host_connect
DEV=$(namespace_device 1)
fio_verify rdma --iodepth=8 --bs=64k --size=2M
read_all rdma copied
[ "$(grep -c "mapped files is copied" /run/target.log)" = 1 ] || fail "that RDMA copies is not said once"
host_disconnect

klog_check "hrtimer: interrupt took|TSC found unstable" # a busy machine; what follows has warnings
say "a file that is cut off while it is read"
TRTYPE=tcp PORT=4421
host_connect
DEV=$(namespace_device 1)
connections=$(grep -c "connection ended" /run/target.log || true)
cut_off() { # until a read comes between the cut and the moment when the target notices
  truncate -s 64M /run/pm0/disk.img; wait_for 10 size_is 64
  io_mark
  fio --name=cut --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randread --bs=4k --iodepth=16 --size=64M --time_based --runtime=3 \
    --continue_on_error=all --output=/tmp/cut & fio=$!
  wait_for 10 io_moved 20; truncate -s 16M /run/pm0/disk.img
  wait $fio || true
  wait_for 10 size_is 16
  grep -q "cannot be read where it is mapped" /run/target.log
}
size_is() { [ "$(cat "/sys/block/${DEV##*/}/size")" = $(($1 << 11)) ]; }
# Without DNR the host tries again, and by then the target may know the new size: LBA Out of Range.
max_retries=/sys/module/nvme_core/parameters/max_retries retries=$(cat $max_retries)
echo 0 >$max_retries
cut_off || cut_off || cut_off || cut_off || fail "no read met the end of the file"
grep -m1 "cannot be read where it is mapped" /run/target.log
[ -e /proc/$TPID ] || fail "the target died"
klog_has "critical medium error" || fail "the host saw no unrecovered read error"
echo "$retries" >$max_retries
ctrl_live || fail "the host lost its connection"
[ "$(grep -c "connection ended" /run/target.log || true)" = "$connections" ] || { tail -n 5 /run/target.log; fail "a connection ended"; }
fio_verify left --iodepth=8 --bs=64k --size=1M
truncate -s 64M /run/pm0/disk.img; wait_for 10 size_is 64
fio_verify back --iodepth=8 --bs=64k --offset=32M --size=2M
read_all tcp-back sent
host_disconnect; target_stop
for n in 0 1; do umount /run/pm$n || fail "the file system is still in use"; done
