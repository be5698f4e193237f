# A disk is pulled out under load and put back: meanwhile the namespace is not ready and the host
# waits, fio on another namespace is not affected, and the data verifies without a restart. A disk
# with a volatile cache has lost unflushed data, and the target does not forget that. Another disk
# in the same place is not used. A deleted file is still served, with a warning.
# variants: tcp rxe
# soak: soft
# root: soft
# covers: backend/disk backend/block internal/storage internal/inventory
# limit: 400
. "$LAB_DIR/lib.sh"
[ -d /sys/kernel/config/nullb ] || fail "the kernel has no null_blk"
disk_up
# disk NAME ATTRIBUTE=VALUE...: 64 MiB of memory that can be pulled; prints the device
disk() { local name=$1; shift; null_disk "$name" size=64 memory_backed=1 blocksize=512 "$@"; }
safe=$(disk safe) caching=$(disk caching cache_size=8)
NAMESPACES=("1:block::$safe" "2:block::$caching" 3:file:64MiB:/run/disk/3.img:4096)
lab_up; target_start; host_connect
ready() { # NSID 0|1
  local nstat
  nstat=$(nvme cmdset-ind-id-ns "/dev/$CTRL" --namespace-id="$1" -o json | jq .nstat)
  [ $((nstat % 2)) = "$2" ]
}
pull() { null_power "$1" 0; wait_for 15 ready "$2" 0; }     # NAME NSID
put_back() { null_power "$1" 1; wait_for 15 ready "$2" 1; } # NAME NSID
head -c 4096 /dev/urandom >/tmp/block

say "pulled under load, and put back"
fio_on 3 other --iodepth=8 --bs=4k --size=8M --time_based --runtime=12 & other=$!
DEV=$(namespace_device 1); io_mark
fio_verify pulled --iodepth=32 --bs=16k --size=24M --rate_iops=300,300 & pulled=$!
wait_for 10 io_moved 500
pull safe 1
io_fails "$PATH_ERROR" read 1
sleep 2
ctrl_live || fail "the controller is not live"
put_back safe 1
wait $pulled || fail "fio on the disk that was away: exit code $?"
wait $other || fail "fio on the other namespace: exit code $?"
logged "a disk is back"
fio_on 1 after --iodepth=16 --bs=16k --size=4M

say "pulled with everything flushed, and with writes in its cache"
io_works write 2
flush_works 2
pull caching 2; put_back caching 2
io_works write 2
pull caching 2; put_back caching 2
flush_fails 2 "the cache is lost"
io_fails status write 2
io_works read 2
[ $(($(critical_warning -n 2) & 8)) = 8 ] || fail "no critical warning"

say "another disk in its place"
pull safe 1
echo 32 >/sys/kernel/config/nullb/safe/size
null_power safe 1
wait_for 15 log_has "another disk is in its place"
ready 1 0 || fail "a smaller disk is used in its place"
null_power safe 0; echo 64 >/sys/kernel/config/nullb/safe/size
put_back safe 1
io_works read 1

say "a deleted file"
rm /run/disk/3.img
wait_for 15 log_has "was deleted"
fio_on 3 deleted --iodepth=8 --bs=16k --size=2M
host_disconnect; target_stop
