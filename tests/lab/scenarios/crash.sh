# Crash consistency: the namespace is on a disk with a volatile cache (null_blk, whose cache is lost when it is switched off). The target is
# killed and the disk loses power, ten times: what was flushed and what was written with FUA is there, while other writes are lost, so
# that the disk does forget. Then the disk is made to ignore flushes: the same check must fail.
# variants: tcp rxe
# limit: 330
. "$LAB_DIR/lib.sh"
disk=/sys/kernel/config/nullb/crash
mkdir $disk
for setting in size=160 memory_backed=1 blocksize=4096 queue_mode=2 irqmode=0 cache_size=96; do echo "${setting#*=}" >$disk/${setting%=*}; done
power_up() {
  echo 1 >$disk/power
  if [ -b /dev/crash ]; then node=/dev/crash; else node=/dev/nullb$(cat $disk/index); fi
  [ "$(cat "/sys/block/${node#/dev/}/queue/write_cache")" = "write back" ] || fail "the disk has no volatile cache"
}
power_up
NAMESPACES=("1:block::$node")
lab_up; target_start; host_connect --reconnect-delay=1

# write NAME MIB BYTE OPTIONS: fills 4 MiB there; intact MIB BYTE: whether all of them are there.
write() { local n=$1 at=$2 byte=$3; shift 3; fio_run "$n" --rw=randwrite --norandommap=0 --bs=4k --iodepth=16 --offset="${at}M" --size=4M --buffer_pattern="0x$(printf %x "$byte")" "$@" >/dev/null; }
intact() { [ "$(dd if="$DEV" bs=1M skip="$1" count=4 iflag=direct status=none | tr -d "\\$(printf %03o "$2")" | wc -c)" = 0 ]; }
crash() {
  target_kill
  echo 0 >$disk/power; power_up
  [ "$1" = honest ] || echo "write through" >"/sys/block/${node#/dev/}/queue/write_cache"
  wait_for 30 ctrl_lost
  target_restart
  wait_for 30 ctrl_live
}
# round N: at a place that no other round has, because null_blk caches only blocks that it has not kept before.
round() {
  local at=$((12 * $1)) a=$((65 + 3 * $1)); local c=$((a + 1)) b=$((a + 2))
  write "flushed-$1" $at $a --end_fsync=1
  write "fua-$1" $((at + 4)) $c --sync=dsync
  write "volatile-$1" $((at + 8)) $b
  intact $at $a && intact $((at + 4)) $c && intact $((at + 8)) $b || fail "round $1: data are wrong even before the crash"
  crash honest
  FLUSHED=0 FUA=0 VOLATILE=0
  intact $at $a && FLUSHED=1; intact $((at + 4)) $c && FUA=1; intact $((at + 8)) $b && VOLATILE=1
  say "round $1: flushed $FLUSHED, FUA $FUA, neither $VOLATILE (1: all is there)"
}
for n in $(seq 10); do
  round "$n"
  [ $FLUSHED = 1 ] || fail "round $n: flushed data are lost"
  [ $FUA = 1 ] || fail "round $n: data written with FUA are lost"
  [ $VOLATILE = 0 ] || fail "round $n: the disk forgot nothing, the test shows nothing"
done

say "the disk ignores flushes and FUA from now on"
echo "write through" >"/sys/block/${node#/dev/}/queue/write_cache"
round 11
[ $FLUSHED$FUA = 00 ] || fail "the check does not notice that flushes do nothing"
host_disconnect
target_stop
