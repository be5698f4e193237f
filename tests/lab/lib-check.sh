# Checks that many scenarios share.

# Nothing runs the iWARP port mapper's daemon here, and siw says so at each listen. The others are a busy machine's doing, not a target's.
KLOG_ALLOWED='iwpm_register_pid|clocksource: |perf: interrupt took too long|sched: DL replenish lagged'
# Under emulation anything takes a second now and then, soonest the kernel's clearing of memory that is registered: 64 MiB took it up to 7 s.
[ "$LAB_VM" != qemu ] || KLOG_ALLOWED+='|long keepalive RTT'

klog_mark() { KLOG_MARK="lab: mark $(date +%s%N)"; echo "<4>$KLOG_MARK" >/dev/kmsg; }
# klog_check [REGEX]: fails when the kernel warned since the mark, apart from lines that match REGEX.
klog_check() {
  local bad
  bad=$(dmesg --level=emerg,alert,crit,err,warn | sed "1,/$KLOG_MARK/d" | grep -Ev "$KLOG_ALLOWED${1:+|$1}" || true)
  [ -z "$bad" ] || fail "warnings in the kernel's log:
$bad"
}
klog_has() { dmesg | sed "1,/$KLOG_MARK/d" | grep -Eq "$1"; }

# leak_mark, leak_check: what the target held then, it holds now. RSS may grow by $1 KiB, threads and descriptors by none.
held() {
  local k
  echo "fds $(target_fds)"; echo "controllers $(target_controllers)"
  for k in qp cm_id mr pd cq; do echo "$k $(rdma_count $k)"; done
}
leak_mark() {
  HELD=''
  wait_for 15 held_same
  HELD_RSS=$(target_rss)
  say "the target holds: $(tr '\n' ' ' <<<"$HELD") RSS $HELD_RSS KiB"
}
# held_same: nothing has changed for half a second. A host that disconnects does not wait until the target has closed its end, too.
held_same() {
  local now
  now=$(held)
  [ "$now" != "$HELD" ] || return 0
  HELD=$now
  sleep 0.5
  return 1
}
leak_check() {
  local limit=$1 rss now end=$((SECONDS + 60))
  until now=$(held); [ "$now" = "$HELD" ] || [ $SECONDS -ge $end ]; do sleep 0.1; done
  rss=$(target_rss)
  say "the target holds: $(tr '\n' ' ' <<<"$now") RSS $rss KiB"
  [ "$now" = "$HELD" ] || fail "the target holds other than before"
  [ -z "$rss" ] || [ $((rss - HELD_RSS)) -le "$limit" ] || fail "the target's RSS grew from $HELD_RSS to $rss KiB"
}
