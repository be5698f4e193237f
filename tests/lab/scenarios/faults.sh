# The fault-injecting backends as seen by a host: a slow namespace, a limited one, one with a bad
# spot, and one with a flush that fails for good.
# variants: tcp rxe
# soak: soft
# covers: backend/wrap internal/limit
# cpus: 2
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:delay 2:limit 3:error 4:error)
target_config() {
  cat <<EOT
listeners: [{transport: $TRTYPE, address: "$ADDR", port: $PORT}]
subsystems:
  - nqn: $NQN
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: delay, latency: 5ms, jitter: 2ms, of: {backend: ram, size: 64MiB}}
      - {nsid: 2, backend: ram, size: 64MiB, limits: {iops: 100, burst: 10ms}}
      - nsid: 3
        backend: error
        operations: [read]
        offset: 1MiB
        length: 64KiB
        of: {backend: ram, size: 64MiB}
      - nsid: 4
        backend: error
        operations: [flush]
        error: degraded
        of: {backend: file, path: /run/disk/4.img, size: 64MiB}
EOT
}
reads() { dd if="$1" of=/dev/null iflag=direct bs=4k count="$2" skip="${3:-0}" 2>/tmp/dd; }
millis() { echo $(($(date +%s%N) / 1000000)); }
media_errors() { nvme smart-log "/dev/$CTRL" -n "$1" -o json | jq '.media_errors|tonumber'; }
disk_up; lab_up; target_start; host_connect
D1=$(namespace_device 1) D2=$(namespace_device 2) D3=$(namespace_device 3) D4=$(namespace_device 4)

say "20 reads of 5 to 7 ms, 50 reads at 100 per second"
t=$(millis); reads "$D1" 20; t=$(($(millis) - t))
! measuring || [ $t -ge 100 ] || fail "20 delayed reads took $t ms"
u=$(millis); reads "$D2" 50; u=$(($(millis) - u))
! measuring || [ $u -ge 400 ] || fail "50 limited reads took $u ms"
say "they took $t and $u ms"

say "a bad spot"
reads "$D3" 1 255 || { cat /tmp/dd; fail "the read before the bad spot failed"; }
! reads "$D3" 1 256 || fail "the bad spot can be read"
grep -q 'No data available' /tmp/dd || { cat /tmp/dd; fail "not a medium error"; }
reads "$D3" 1 272 || fail "the read after the bad spot failed"
[ "$(media_errors 3)" -ge 1 ] || fail "no media error in the health log of namespace 3"
[ "$(media_errors 1)" = 0 ] || fail "a media error in the health log of namespace 1"
nvme error-log "/dev/$CTRL" -e 1 -o json | jq -c '.errors[0]' | tee /tmp/entry
jq -e '.nsid == 3 and .lba == 2048' /tmp/entry >/dev/null ||
  fail "the error log does not name namespace 3, block 2048"

say "a flush that fails"
[ "$(critical_warning)" = 0 ] || fail "a warning before the failure"
nvme set-feature "/dev/$CTRL" -f 0xb -v 0x104 >/dev/null || fail "the event cannot be enabled"
! dd if=/dev/zero of="$D4" bs=4k count=1 conv=fsync 2>/tmp/dd || fail "a flush succeeded"
wait_for 10 eval '[ "$(blockdev --getro "$D4")" = 1 ]'
[ "$(critical_warning)" = 4 ] || fail "critical_warning of the subsystem: $(critical_warning)"
[ "$(critical_warning -n 4)" = 12 ] ||
  fail "critical_warning of namespace 4: $(critical_warning -n 4)"
reads "$D4" 1 || fail "it cannot be read any more"
dd if=/dev/zero of="$D3" bs=4k count=1 oflag=direct 2>/dev/null ||
  fail "another namespace is affected"
logged "namespace is write protected"
host_disconnect
errors='I/O error|I/O Error|Unrecovered Read Error|Write Fault|lost async page write'
klog_check "$errors|Write Protected|critical (medium|target)|AEN|no usable path"
target_stop
