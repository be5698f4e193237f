# Namespaces in files on persistent memory, ext4 and xfs mounted with -o dax: fio with checksums
# over TCP and soft RoCE; the kernel copies data of the file (dax_iomap_rw) only if it cannot be
# sent from its mapping; discards; a file that is truncated under load.
# variants: rxe
# covers: backend/file backend/disk internal/mem
# nvmet: which maps no files
# memmap: 256M!1024M,352M!1312M
# cpus: 2
# limit: 1200
. "$LAB_DIR/lib.sh"
need blkdiscard mkfs.xfs
modprobe -a nd_e820 nd_pmem
for n in 0 1; do wait_for 30 test -b /dev/pmem$n; done
mkfs.ext4 -q -b 4096 /dev/pmem0; mkfs.xfs -q -f /dev/pmem1
for n in 0 1; do
  mkdir -p /run/pm$n
  mount -o dax=always /dev/pmem$n /run/pm$n || fail "mounting /dev/pmem$n with dax"
done
trace=/sys/kernel/tracing
[ -e $trace/kprobe_events ] || mount -t tracefs trace $trace
echo 'p:dax dax_iomap_rw' >$trace/kprobe_events; echo 1 >$trace/events/kprobes/dax/enable
copies() { awk '$1 == "dax" {print $2}' $trace/kprobe_profile; }
# read_all NAME copied|sent: reads the namespace and counts the kernel's copies of data of the file.
read_all() {
  local before n; before=$(copies)
  fio_run "$1" --rw=read --bs=64k --iodepth=8 --size=16M
  n=$(($(copies) - before))
  say "$1: 256 reads, $n copies"
  case $2 in copied) [ $n -ge 256 ] ;; sent) [ $n = 0 ] ;; esac || fail "$1 is not $2"
}
lab_up

NAMESPACES=(1:file:64MiB:/run/pm0/disk.img:4096 2:file:64MiB:/run/pm1/disk.img:512)
TARGET_LISTENERS=tcp/10.0.0.1/4421
target_start
[ "$(log_count "a file on DAX is mapped")" = 2 ] || fail "the files are not mapped"
TRTYPE=tcp PORT=4421
host_connect
for nsid in 1 2; do
  for work in 4k:512k 64k:2M 1M:8M; do
    fio_on $nsid "tcp-ns$nsid-${work%:*}" --iodepth=8 --bs=${work%:*} --size=${work#*:}
  done
  read_all "tcp-ns$nsid" sent
done
DEV=$(namespace_device 1)
fio_run mixed --rw=randrw --bs=4k --iodepth=16 --size=512k --io_size=1M
fio_run fua --rw=randwrite --sync=dsync --bs=4k --iodepth=4 --size=512k
say "discard and write zeroes"
head -c 8M /dev/urandom >/tmp/random
used() { du -m /run/pm0/disk.img | cut -f1; }
mib_32_to_40() { dd if="$DEV" bs=1M skip=32 count=8 iflag=direct status=none; }
dd if=/tmp/random of="$DEV" bs=1M seek=32 oflag=direct status=none; before=$(used)
cmp /tmp/random <(mib_32_to_40) || fail "other data than was written"
blkdiscard -o 32M -l 4M "$DEV" || fail "blkdiscard"
after=$(used)
[ $((before - after)) = 4 ] || fail "a discard of 4 MiB made $before MiB $after"
blkdiscard -z -o 36M -l 2M "$DEV" || fail "write zeroes"
cmp <(head -c 6M /dev/zero; tail -c 2M /tmp/random) <(mib_32_to_40) ||
  fail "other data than zeroes and the rest"
host_disconnect
say "data digests"
host_connect --data-digest
read_all tcp-digest copied
host_disconnect
! log_has "mapped files is copied" || fail "RDMA was not used yet"

say "soft RoCE"
TRTYPE=rdma PORT=4420
host_connect
DEV=$(namespace_device 1)
fio_verify rdma --iodepth=8 --bs=64k --size=2M
read_all rdma copied
[ "$(log_count "mapped files is copied")" = 1 ] || fail "not one message that RDMA copies"
host_disconnect

klog_check # now: the rest causes warnings
say "a file that is truncated while it is read"
TRTYPE=tcp PORT=4421
host_connect
DEV=$(namespace_device 1)
connections=$(log_count "connection ended")
cut_off() { # succeeds if a read arrives before the target notices the new size
  truncate -s 64M /run/pm0/disk.img; wait_for 10 size_is 64
  io_mark
  fio --name=cut --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randread --bs=4k \
    --iodepth=16 --size=64M --time_based --runtime=3 --continue_on_error=all --output=/tmp/cut &
  fio=$!
  wait_for 10 io_moved 20; truncate -s 16M /run/pm0/disk.img
  wait $fio || true
  wait_for 10 size_is 16
  log_has "cannot be read where it is mapped"
}
size_is() { [ "$(cat "/sys/block/${DEV##*/}/size")" = $(($1 << 11)) ]; }
# Without DNR the host repeats the read, and then the target may know the new size: LBA Out of
# Range.
max_retries=/sys/module/nvme_core/parameters/max_retries retries=$(cat $max_retries)
echo 0 >$max_retries
cut_off || cut_off || cut_off || cut_off || fail "no read reached the end of the file"
[ -e /proc/$TPID ] || fail "the target has ended"
klog_has "critical medium error" || fail "the host saw no unrecovered read error"
echo "$retries" >$max_retries
ctrl_live || fail "the host lost its connection"
[ "$(log_count "connection ended")" = "$connections" ] || fail "a connection ended"
fio_verify left --iodepth=8 --bs=64k --size=1M
truncate -s 64M /run/pm0/disk.img; wait_for 10 size_is 64
fio_verify back --iodepth=8 --bs=64k --offset=32M --size=2M
read_all tcp-back sent
host_disconnect; target_stop
for n in 0 1; do umount /run/pm$n || fail "the file system is still in use"; done
