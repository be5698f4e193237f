# fio writes with checksums and reads back, at depths 1, 32 and 128, from 512 bytes to 1 MiB, then
# from 4 jobs over 4 queues. A sample has three of the twelve combinations of depth and size, the
# smoke set two.
# variants: rxe siw tcp soft softiw
# smoke: rxe siw tcp soft
# covers: fabric/tcp fabric/rdma backend/ram internal/reactor internal/mem internal/turns
# cpus: 4
# limit: 640
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:512MiB)
lab_up; target_start
host_connect --nr-io-queues=4 --queue-size=128
want=$(($(nproc) < 4 ? $(nproc) : 4)) # Linux makes at most one queue per CPU
[ "$(cat "/sys/class/nvme/$CTRL/queue_count")" = $((want + 1)) ] ||
  fail "not $want I/O queues: queue_count is $(cat "/sys/class/nvme/$CTRL/queue_count")"
for work in $(sample $(sized 2 3 12) {1,32,128}:{512:1M,4k:8M,64k:32M,1M:128M}); do
  IFS=: read -r depth bs size <<<"$work"
  fio_verify "qd$depth-$bs" --iodepth=$depth --bs=$bs --size=$size
done
fio_verify mixed --iodepth=32 --bsrange=512-1M --bs_unaligned=0 --size=$(sized 8M 64M 64M)
fio_verify 4jobs --iodepth=32 --bs=4k --size=$(sized 2M 8M 8M) --numjobs=4 --offset_increment=64M
fio_run randrw --rw=randrw --iodepth=32 --bs=4k --size=64M --numjobs=4 --io_size=$(sized 4M 16M 16M)
host_disconnect
klog_check
