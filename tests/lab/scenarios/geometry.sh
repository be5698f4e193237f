# The properties of a disk in the block layer of the host: its physical blocks, which are written
# whole, its rotation, and discard support.
# variants: tcp
# covers: backend/block nvme/target
. "$LAB_DIR/lib.sh"
need dmsetup
for name in hdd plain; do
  dmsetup create $name --table "0 131072 linear /dev/ram1 $([ $name = hdd ] && echo 0 || echo 131072)" || fail "dmsetup create"
done
dmsetup mknodes
queue() { printf '/sys/dev/block/%d:%d/queue\n' "0x$(stat -Lc %t "$1")" "0x$(stat -Lc %T "$1")"; }
echo 1 >"$(queue /dev/mapper/hdd)/rotational"
NAMESPACES=(1:block::/dev/mapper/hdd 2:block::/dev/mapper/plain)
lab_up; target_start; host_connect

for nsid in 1 2; do
  disk=$(queue "/dev/mapper/$([ $nsid = 1 ] && echo hdd || echo plain)"); host=$(queue "$(namespace_device $nsid)")
  for limit in logical_block_size physical_block_size rotational; do
    [ "$(cat "$host/$limit")" = "$(cat "$disk/$limit")" ] || fail "namespace $nsid: $limit is $(cat "$host/$limit"), that of the disk $(cat "$disk/$limit")"
    say "namespace $nsid: $limit $(cat "$host/$limit")"
  done
  [ "$(cat "$host/atomic_write_unit_max_bytes")" = "$(cat "$disk/physical_block_size")" ] ||
    fail "namespace $nsid: atomic writes of $(cat "$host/atomic_write_unit_max_bytes") bytes"
  discards() { [ "$(cat "$1/discard_max_hw_bytes")" != 0 ]; }
  if discards "$disk"; then discards "$host" || fail "no discards"; else discards "$host" && fail "discards that the disk does not have"; fi
done
[ "$(cat "$(queue /dev/mapper/hdd)/physical_block_size")" = 4096 ] || fail "the disk has no physical blocks of 4 KiB: nothing was tested"
klog_check
host_disconnect
klog_check
