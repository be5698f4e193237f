# A disk that is ill in part, as dm-flakey and dm-delay make it: writes that fail while reads work, reads that fail while writes work, a flush
# that fails once, commands that take long. The host sees the status of each, a failed flush stays failed after the disk is well, and
# another namespace's fio notices nothing of it all.
# variants: tcp rxe
# limit: 160
. "$LAB_DIR/lib.sh"
need dmsetup losetup
disk_up
truncate -s 64M /run/disk/backing
loop=$(losetup -f --show --direct-io=on /run/disk/backing) # has a volatile cache, so that a flush is something
linear="0 131072 linear $loop 0"
dmsetup create lab --table "$linear" || fail "dmsetup create"
dmsetup mknodes
NAMESPACES=(1:block::/dev/mapper/lab 2:file:64MiB:/run/disk/2.img:4096)
lab_up; target_start; host_connect
table() { dmsetup suspend --noflush lab; dmsetup load lab --table "$1"; dmsetup resume lab; }
flakey() { table "0 131072 flakey $loop 0 0 60 1 $1"; } # never up
other() { DEV=$(namespace_device 2); fio_verify other --iodepth=8 --bs=4k --size=32M --time_based --runtime="$1" & other=$!; DEV=$(namespace_device 1); }
command() { nvme "$@" "$DEV" --namespace-id=1 --start-block=0 --block-count=7 --data-size=4096 --data=/tmp/block 2>&1 || true; }
# refused COMMAND STATUS: the status without DNR and what else is in the upper bits.
refused() { local s; s=$(command "$1"); grep -qiE "$2" <<<"$s" || fail "$1: $s"; }
works() { local s; s=$(command "$1"); ! grep -qi 'status' <<<"$s" || fail "$1: $s"; }
flush() { nvme flush "$DEV" --namespace-id=1 2>&1 || true; }
completed() { awk '{print $1 + $5}' "/sys/block/$(basename "$1")/stat"; }
head -c 4096 /dev/urandom >/tmp/block
DEV=$(namespace_device 1) OTHER=$(namespace_device 2)

other 6
say "reads fail"
flakey error_reads
refused read 'unrecovered|0x2?281'; works write
say "writes fail"
flakey error_writes
works read; refused write 'write fault|0x2?280'
table "$linear"
works write; works read
[[ $(flush) == *uccess* ]] || fail "a flush after failed writes, none of which was acknowledged: $(flush)"
wait $other || fail "the other namespace's fio: exit code $?"

say "everything takes 300 ms longer"
table "0 131072 delay $loop 0 300"
other 4
fio --name=slow --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k --iodepth=16 --time_based --runtime=3 --thread \
  --output-format=json --output=/tmp/slow.json >/dev/null 2>&1 & slow=$!
sleep 1; slow_before=$(completed "$DEV") before=$(completed "$OTHER")
sleep 2; slow_done=$(($(completed "$DEV") - slow_before)) done=$(($(completed "$OTHER") - before))
wait $slow || fail "the slow namespace's fio: exit code $?"
wait $other || fail "the other namespace's fio: exit code $?"
latency=$(sed -n '/^{/,$p' /tmp/slow.json | jq '.jobs[0].read.clat_ns.min / 1000000 | floor')
say "within 2 s $slow_done commands of $latency ms and more on the slow namespace, $done on the other one"
[ "$latency" -ge 200 ] || fail "the disk is not slow"
[ "$done" -ge $((20 * slow_done)) ] || fail "the slow namespace holds up the other one"
table "$linear"

say "one flush fails"
works write
flakey error_writes
refused write 'write fault|0x2?280'
[[ $(flush) != *uccess* ]] || fail "a flush succeeded on a disk that refuses it"
table "$linear"
[[ $(flush) != *uccess* ]] || fail "a flush succeeded after one that failed: what was written before may be lost"
s=$(command write); grep -qi 'status' <<<"$s" || fail "a write is accepted after a failed flush: $s"
works read
[ $(($(nvme smart-log "/dev/$CTRL" -n 1 -o json | jq .critical_warning) & 8)) = 8 ] || fail "no critical warning that the namespace is read-only"
grep -q 'takes no more writes' /run/target.log || fail "the target's log says nothing"
other 1
wait $other || fail "the other namespace's fio: exit code $?"
host_disconnect; target_stop
target_start; host_connect
DEV=$(namespace_device 1)
works write; [[ $(flush) == *uccess* ]] || fail "opened again, the namespace does not work"
host_disconnect; target_stop
