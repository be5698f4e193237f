# A disk is pulled out under load and put back: the namespace is not ready meanwhile and the host waits, another namespace's fio notices
# nothing, and the data verify although nobody restarted anything. A disk with a volatile cache has lost what was not flushed, and that is not
# forgotten. Another disk in the same place is not touched. A file that is deleted is served on, with a warning.
# variants: tcp rxe
# limit: 240
. "$LAB_DIR/lib.sh"
[ -d /sys/kernel/config/nullb ] || fail "the kernel has no null_blk"
disk_up
null_disk() { # NAME CACHE_MIB: 64 MiB of memory that can be pulled; prints the device
  local d=/sys/kernel/config/nullb/$1
  mkdir "$d"
  echo 64 >"$d/size"; echo 1 >"$d/memory_backed"; echo 512 >"$d/blocksize"; echo 2 >"$d/queue_mode"; echo 0 >"$d/irqmode"
  [ "$2" = 0 ] || echo "$2" >"$d/cache_size"
  echo 1 >"$d/power"
  wait_for 5 eval "[ -b /dev/$1 ] || [ -b /dev/nullb\$(cat $d/index) ]"
  if [ -b "/dev/$1" ]; then echo "/dev/$1"; else echo "/dev/nullb$(cat "$d/index")"; fi
}
power() { echo "$2" >"/sys/kernel/config/nullb/$1/power"; }
safe=$(null_disk safe 0) caching=$(null_disk caching 8)
NAMESPACES=("1:block::$safe" "2:block::$caching" 3:file:64MiB:/run/disk/3.img:4096)
lab_up; target_start; host_connect
fio_on() { DEV=$(namespace_device "$1"); shift; fio_verify "$@"; }
status() { local op=$1 n=$2; shift 2; nvme "$op" "$(namespace_device "$n")" --namespace-id="$n" --start-block=0 --block-count=7 --data-size=4096 --data=/tmp/block "$@" 2>&1 || true; }
ready() { [ "$(nvme cmdset-ind-id-ns "/dev/$CTRL" --namespace-id="$1" -o json | jq '.nstat % 2')" = "$2" ]; }
logged() { [ "$(grep -c "$1" /run/target.log)" -ge "$2" ]; }
works() { local s; s=$(status "$@"); ! grep -qi 'status' <<<"$s" || fail "$*: $s"; }
head -c 4096 /dev/urandom >/tmp/block

say "pulled under load, and put back"
fio_on 3 other --iodepth=8 --bs=4k --size=8M --time_based --runtime=12 & other=$!
fio_on 1 pulled --iodepth=32 --bs=16k --size=24M --rate_iops=300,300 & pulled=$!
sleep 3
power safe 0
wait_for 15 ready 1 0
s=$(status read 1); grep -qiE 'internal path error|0x2?300' <<<"$s" || fail "a read from a disk that is gone: $s"
sleep 2
ctrl_live || fail "the controller is not live"
power safe 1
wait_for 15 ready 1 1
wait $pulled || fail "fio on the disk that was away: exit code $?"
wait $other || fail "the other namespace's fio: exit code $?"
logged 'a disk is back' 1 || fail "the log does not say that it is back"
fio_on 1 after --iodepth=16 --bs=16k --size=4M

say "pulled with everything flushed, and with writes in its cache"
works write 2
nvme flush "$(namespace_device 2)" --namespace-id=2 >/dev/null || fail "flush"
power caching 0; wait_for 15 ready 2 0
power caching 1; wait_for 15 ready 2 1
works write 2
power caching 0; wait_for 15 ready 2 0
power caching 1; wait_for 15 ready 2 1
s=$(nvme flush "$(namespace_device 2)" --namespace-id=2 2>&1 || true)
[[ $s != *uccess* ]] || fail "a flush succeeded although the cache is lost"
s=$(status write 2); grep -qi 'status' <<<"$s" || fail "a write is accepted although others are lost"
works read 2
[ $(($(nvme smart-log "/dev/$CTRL" -n 2 -o json | jq .critical_warning) & 8)) = 8 ] || fail "no critical warning"

say "another disk in its place"
power safe 0; wait_for 15 ready 1 0
echo 32 >/sys/kernel/config/nullb/safe/size
power safe 1
wait_for 15 logged 'another disk is in its place' 1
ready 1 0 || fail "a smaller disk is taken for it"
power safe 0; echo 64 >/sys/kernel/config/nullb/safe/size; power safe 1
wait_for 15 ready 1 1
works read 1

say "a deleted file"
rm /run/disk/3.img
wait_for 15 logged 'was deleted' 1
fio_on 3 deleted --iodepth=8 --bs=16k --size=2M
host_disconnect; target_stop
