# A Linux host connects, sees the namespaces with their sizes, reads and writes, and disconnects; on
# TCP with every combination of digests.
# variants: rxe rxe6 siw siw6 tcp tcp6 soft soft6 softiw softiw6
# smoke: rxe siw tcp
# covers: fabric fabric/tcp fabric/rdma nvme/target nvme/target/association backend/ram backend/null
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB 3:null:1TiB)
lab_up; target_start
combinations=("")
[ $LINK != tcp ] || combinations+=(--hdr-digest --data-digest "--hdr-digest --data-digest")
pattern=/tmp/pattern; head -c 1M /dev/urandom >$pattern
for options in "${combinations[@]}"; do
  say "connect $options"
  # shellcheck disable=SC2086  # options
  host_connect $options
  [ "$(blockdev --getsize64 "$DEV")" = $((64 << 20)) ] || fail "namespace 1 is not 64 MiB"
  [ "$(blockdev --getsize64 "$(namespace_device 3)")" = $((1 << 40)) ] ||
    fail "namespace 3 is not 1 TiB"
  dd if=$pattern of="$DEV" bs=1M oflag=direct status=none
  dd if="$DEV" bs=1M count=1 iflag=direct status=none | cmp - $pattern ||
    fail "reads back other data"
  dd if="$DEV" bs=4k count=256 iflag=direct status=none | cmp - $pattern ||
    fail "reads back other data in pieces of 4 KiB"
  host_disconnect
done
klog_check
target_stop
