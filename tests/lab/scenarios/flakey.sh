# A disk with partial failures, made by dm-flakey and dm-delay: writes that fail while reads work,
# reads that fail while writes work, a flush that fails once, commands that take long. The host sees
# the status of each, a failed flush stays failed after the disk works again, and fio on the other
# namespace is not affected.
# variants: tcp rxe
# soak: soft
# root: soft
# covers: backend/disk backend/block internal/storage
# limit: 360
. "$LAB_DIR/lib.sh"
need dmsetup losetup
disk_up
truncate -s 64M /run/disk/backing
# A loop device has a volatile cache, so flushes matter.
loop=$(losetup -f --show --direct-io=on /run/disk/backing)
linear="0 131072 linear $loop 0"
dm lab "$linear"
NAMESPACES=(1:block::/dev/mapper/lab 2:file:64MiB:/run/disk/2.img:4096)
lab_up; target_start; host_connect
flakey() { dm_table lab "0 131072 flakey $loop 0 0 60 1 $1"; } # always failing
beside() { # SECONDS: fio on the other namespace
  fio_on 2 other --iodepth=8 --bs=4k --size=32M --time_based --runtime="$1" & other=$!
}
head -c 4096 /dev/urandom >/tmp/block
SLOW=$(namespace_device 1) OTHER=$(namespace_device 2)

beside 6
say "reads fail"
flakey error_reads
io_fails "$READ_ERROR" read 1; io_works write 1
say "writes fail"
flakey error_writes
io_works read 1; io_fails "$WRITE_FAULT" write 1
dm_table lab "$linear"
io_works write 1; io_works read 1
flush_works 1 # none of the failed writes was acknowledged
wait $other || fail "fio on the other namespace: exit code $?"

say "everything takes 300 ms longer"
dm_table lab "0 131072 delay $loop 0 300"
slow_done() { load_goes_on; [ $(($(completed "$SLOW") - before)) -ge "$1" ]; }
for _ in 1 2 3; do # the machine may be busy with something else
  DEV=$OTHER; load other --iodepth=8 --bs=4k --size=2M --time_based --runtime=3
  before=$(completed "$SLOW")
  fio --name=slow --filename="$SLOW" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k \
    --iodepth=16 --number_ios=128 --thread --output-format=json --output=/tmp/slow.json \
    >/dev/null 2>&1 & slow=$!
  wait_for 20 slow_done 16; io_mark; others=$IO_SEEN
  wait_for 20 slow_done 120; io_mark; others=$((IO_SEEN - others))
  wait $slow || fail "fio on the slow namespace: exit code $?"
  load_ends
  latency=$(sed -n '/^{/,$p' /tmp/slow.json | jq '.jobs[0].read.clat_ns.min / 1000000 | floor')
  say "beside 104 commands of at least $latency ms on the slow namespace, $others on the other"
  ! measuring || [ "$latency" -ge 200 ] || fail "the disk is not slow"
  [ "$others" -lt $(sized 1 1 500) ] || break
done
[ "$others" -ge $(sized 1 1 500) ] || fail "the slow namespace delays the other one"
dm_table lab "$linear"

say "one flush fails"
io_works write 1
flakey error_writes
io_fails "$WRITE_FAULT" write 1
flush_fails 1 "the disk refuses it"
dm_table lab "$linear"
flush_fails 1 "after a failed flush earlier writes may be lost"
io_fails status write 1
io_works read 1
[ $(($(critical_warning -n 1) & 8)) = 8 ] ||
  fail "no critical warning that the namespace is read-only"
logged "takes no more writes"
beside 1
wait $other || fail "fio on the other namespace: exit code $?"
host_disconnect; target_stop
target_start; host_connect
io_works write 1; flush_works 1 # opened again
host_disconnect; target_stop
