# Checks that many scenarios share.

# Lines of the kernel's log that do not fail a scenario. All others do, known or not.
# The parts of the kernel that deal only with time complain whenever an emulated or busy CPU is
# late, with any target...
KLOG_TIME='hrtimer: |clocksource: |tsc: |TSC found unstable|perf: interrupt took too long'
KLOG_TIME+='|sched: (DL replenish|RT throttling)|workqueue: .* hogged CPU'
# ... unless they report a fault.
KLOG_FAULT='BUG|WARNING|Oops|panic|stall|blocked for more'
# The daemon of the iWARP port mapper does not run here, which siw reports at each listen. On a busy
# machine a Keep Alive may take up to half of its timeout of 5 s, and any time where nothing is
# measured.
KLOG_ALLOWED='iwpm_register_pid|long keepalive RTT \((1[0-9]|2[0-4])[0-9]{2} ms\)'
# Under emulation anything can take seconds, most often the kernel's clearing of memory that is
# registered: up to 7 s for 64 MiB.
[ "$LAB_VM-${SAMPLE:-}" = uml- ] || KLOG_ALLOWED+='|long keepalive RTT'
# A node may exist for a moment before its disk, or longer.
KLOG_ALLOWED+='|block device autoloading is deprecated'
# The kernel's rate limits also count messages of earlier scenarios in the same boot.
[ -z "${LAB_STATE:-}" ] || KLOG_ALLOWED+='|callbacks suppressed'

klog_mark() { KLOG_MARK="lab: mark $(date +%s%N)"; echo "<4>$KLOG_MARK" >/dev/kmsg; }
# klog_check [REGEX]: fails if the kernel has logged a warning or worse since the mark, apart from
# the lines above and lines that match REGEX.
klog_check() {
  local bad
  bad=$(dmesg --level=emerg,alert,crit,err,warn | sed "0,/$KLOG_MARK/d" |
    awk -v time="^\\\\[ *[0-9.]+\\\\] ($KLOG_TIME)" -v fault="$KLOG_FAULT" \
      '$0 !~ time || $0 ~ fault' |
    grep -Ev "$KLOG_ALLOWED${1:+|$1}" || true)
  [ -z "$bad" ] || fail "warnings in the kernel's log:
$bad"
}
klog_has() { dmesg | sed "0,/$KLOG_MARK/d" | grep -Eq "$1"; }

# leak_mark, leak_check: the target holds the same objects at both times. Its RSS may grow by $1
# KiB, its threads and descriptors not at all. Its memory regions may grow by $2: a RAM namespace
# registers 2 MiB (mem.ChunkSize) when it first uses them, for example for writes that last long.
held() {
  local k
  echo "fds $(target_fds)"; echo "controllers $(target_controllers)"
  if [ $LINK = soft ]; then # the kernel has no objects, so the target is asked for its own
    on_target curl -s "http://$METRICS/metrics" | sed -nE \
      's/^nvmf_target_(rdma_memory_regions|rdma_queue_pairs|controller_queues)\{.*\} /\1 /p' |
      sed 's/^rdma_memory_regions/mr/'
    return
  fi
  for k in qp cm_id mr pd cq; do echo "$k $(rdma_count $k)"; done
}
leak_mark() {
  HELD=''
  wait_for 15 held_same
  grep -q '^mr ' <<<"$HELD" || fail "the memory regions of the target are not known"
  HELD_RSS=$(target_rss)
  say "the target holds: $(tr '\n' ' ' <<<"$HELD") RSS $HELD_RSS KiB"
}
# held_same: nothing has changed for two seconds. A host that disconnects does not wait until the
# target has closed its end, too, which a busy machine delays.
HELD_TIMES=0
held_same() {
  local now
  now=$(held)
  if [ "$now" = "$HELD" ]; then HELD_TIMES=$((HELD_TIMES + 1)); else HELD_TIMES=0; fi
  HELD=$now
  [ $HELD_TIMES -lt 4 ] || return 0
  sleep 0.5
  return 1
}
# held_still reports whether $now has the objects of $HELD, and at most $regions more regions.
held_still() {
  local more=$(($(sed -n 's/^mr //p' <<<"$now") - $(sed -n 's/^mr //p' <<<"$HELD")))
  [ "$(grep -v '^mr ' <<<"$now")" = "$(grep -v '^mr ' <<<"$HELD")" ] &&
    [ $more -ge 0 ] && [ $more -le "$regions" ]
}
leak_check() {
  local limit=$1 regions=${2:-0} rss now end=$((SECONDS + 60))
  until now=$(held); held_still || [ $SECONDS -ge $end ]; do sleep 0.1; done
  rss=$(target_rss)
  say "the target holds: $(tr '\n' ' ' <<<"$now") RSS $rss KiB"
  held_still || fail "the target does not hold the same objects as before"
  [ -z "$rss" ] || [ $((rss - HELD_RSS)) -le "$limit" ] ||
    fail "the target's RSS grew from $HELD_RSS to $rss KiB"
}
