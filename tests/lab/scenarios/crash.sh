# Crash consistency: the namespace is on a disk with a volatile cache (null_blk, which loses its
# cache when it is switched off). The target is killed and the disk loses power, ten times: flushed
# data and data written with FUA is there, while other writes are lost, which shows that the disk
# does lose its cache. Then the disk ignores flushes: the same check must fail.
# variants: tcp rxe
# covers: backend/block backend/disk internal/storage
# limit: 330
. "$LAB_DIR/lib.sh"
node=$(null_disk crash size=160 memory_backed=1 blocksize=4096 cache_size=96)
power_up() {
  null_power crash 1; node=$(null_node crash)
  [ "$(cat "/sys/block/${node#/dev/}/queue/write_cache")" = "write back" ] ||
    fail "the disk has no volatile cache"
}
ignore_flushes() { echo "write through" >"/sys/block/${node#/dev/}/queue/write_cache"; }
power_up
NAMESPACES=("1:block::$node")
lab_up; target_start; host_connect --reconnect-delay=1

# write NAME MIB BYTE OPTIONS: fills 4 MiB there. intact MIB BYTE: all of them are there.
write() {
  local n=$1 at=$2 byte; byte=$(printf %x "$3"); shift 3
  fio_run "$n" --rw=randwrite --norandommap=0 --bs=4k --iodepth=16 --offset="${at}M" --size=4M \
    --buffer_pattern="0x$byte" "$@" >/dev/null
}
intact() {
  local others
  others=$(dd if="$DEV" bs=1M skip="$1" count=4 iflag=direct status=none |
    tr -d "\\$(printf %03o "$2")" | wc -c)
  [ "$others" = 0 ]
}
crash() {
  target_kill
  null_power crash 0; power_up
  [ "$1" = honest ] || ignore_flushes
  wait_for 30 ctrl_lost
  target_restart
  wait_for 30 ctrl_live
}
# round N: in a place of its own, because null_blk caches only blocks that it does not store yet.
round() {
  local at=$((12 * $1)) a=$((65 + 3 * $1)); local c=$((a + 1)) b=$((a + 2))
  write "flushed-$1" $at $a --end_fsync=1
  write "fua-$1" $((at + 4)) $c --sync=dsync
  write "volatile-$1" $((at + 8)) $b
  intact $at $a && intact $((at + 4)) $c && intact $((at + 8)) $b ||
    fail "round $1: the data is wrong before the crash"
  crash honest
  FLUSHED=0 FUA=0 VOLATILE=0
  intact $at $a && FLUSHED=1; intact $((at + 4)) $c && FUA=1; intact $((at + 8)) $b && VOLATILE=1
  say "round $1: flushed $FLUSHED, FUA $FUA, neither $VOLATILE (1: all is there)"
}
for n in $(seq "$([ -z "$SAMPLE" ] && echo 10 || echo 3)"); do
  round "$n"
  [ $FLUSHED = 1 ] || fail "round $n: flushed data is lost"
  [ $FUA = 1 ] || fail "round $n: data written with FUA is lost"
  [ $VOLATILE = 0 ] || fail "round $n: the disk lost nothing, so the test shows nothing"
done

say "the disk ignores flushes and FUA from now on"
ignore_flushes
round 11
[ $FLUSHED$FUA = 00 ] || fail "the check does not notice that flushes do nothing"
host_disconnect
target_stop
