# The configuration changes at random and is reloaded while two hosts write, read and verify: each
# change becomes visible on the host. Untouched namespaces see no error. Files with errors change
# nothing. In full each change is visible within 2 s, and the 99.9th percentile of the latency of
# other namespaces is at most twice its value without reloads.
# variants: rxe siw tcp
# soak: soft
# root: soft
# smoke: rxe siw tcp
# covers: internal/app internal/engine internal/logs config config/lang nvme/target
# cpus: 2
# alone: it measures
# limit: 900
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-reload.sh"
[ "$TARGET" = ours ] || skip "the kernel's target has no configuration file"
: "${RELOADS:=$(sized 3 12 60)}"
disk_up
NAMESPACES=(1:file:64MiB:/run/disk/1.img:4096 2:file:64MiB:/run/disk/2.img)
ALLOWED="$HOSTNQN $HOSTNQN2"
lab_up; target_start
say "seed $SEED"

host_connect
HOSTNQN=$HOSTNQN2 HOSTID=$HOSTID2 host_connect_again keep_alive_tmo=5
both_live() { [ "$(cat /sys/class/nvme/nvme[01]/state | xargs)" = "live live" ]; }
wait_for 10 both_live
for p in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >"$p"; done
fio_verify layout --bs=4k --size=8M
on_target socat TCP-LISTEN:4499,bind=$ADDR,fork EXEC:true & # an address in use
blocker=$!

# The hosts' work: reads of one namespace and writes to the other, over both controllers.
WORK=(--size=8M --iodepth=4 --rate_iops=500 --time_based --runtime=$(sized 4 8 8))
hosts_work() {
  local reads
  fio_run reads --rw=randread --bs=4k --verify=crc32c --verify_fatal=1 "${WORK[@]}" & reads=$!
  fio_on 2 writes --bs=8k --verify_backlog=32 "${WORK[@]}"
  wait $reads || fail "fio reads: exit code $?"
}
# beside COMMAND...: repeats COMMAND while the hosts work, and sets P999 and MAX in milliseconds.
beside() {
  local work
  hosts_work >/run/work.log 2>&1 & work=$!
  while kill -0 $work 2>/dev/null; do "$@"; done
  wait $work || { cat /run/work.log; fail "the hosts' work: exit code $?"; }
  P999=$(latency 'percentile."99.900000"') MAX=$(latency max)
  both_live || fail "an untouched controller is not live"
  # For these two hosts the kernel logs at most slow Keep Alives. For the others it logs that they
  # may no longer connect.
  if klog_has 'nvme nvme[01]: ([^l]|l[^o])'; then
    dmesg | grep -E 'nvme nvme[01]: ' | tail; fail "an untouched controller is not left alone"
  fi
  klog_check 'nvme([2-9]|[1-9][0-9]+)(:|n[0-9]|c[0-9])|Connect for subsystem|callbacks suppressed'
  klog_mark
}
latency() { # FIELD: the larger of that of reads and that of writes
  jq -s "[.[].jobs[0] | .read, .write | .clat_ns.$1 // 0] | max / 1e6 | ceil" \
    /tmp/{reads,writes}.json
}
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }

reloads=0 late=0 slowest=0
# watch takes about as much CPU time as the work after a reload.
watch() { await_visible 5; check_files; }
reload_once() {
  local begin took
  [ $reloads -lt $RELOADS ] || { watch; return; }
  [ $((reloads % 4)) != 0 ] || reload_with_error $((reloads / 4 % 3))
  change
  target_config >/run/target.yaml
  begin=${EPOCHREALTIME/./}
  reload
  await_visible 5
  took=$(((VISIBLE_AT - begin) / 1000))
  reloads=$((reloads + 1))
  logged "the configuration was applied" $reloads
  [ $took -le 2000 ] || late=$((late + 1))
  [ $took -le $slowest ] || slowest=$took
  settle
}
reload_with_error() { # WHICH
  local refused generation=$GENERATION why
  refused=$(log_count "the configuration was not changed")
  case $1 in
    0) why='not valid YAML'; { target_config; echo "subsystems: ["; } >/run/target.yaml ;;
    1)
      why='is a directory'
      target_config | sed '0,/path:/s|path: [^,}]*|path: /run/disk|' >/run/target.yaml ;;
    2)
      why='address already in use'
      TARGET_LISTENERS="$TARGET_LISTENERS tcp/$ADDR/4499" target_config |
        sed '/4499/s/}/, on_unavailable: fail}/' >/run/target.yaml ;;
  esac
  reload
  logged "the configuration was not changed" $((refused + 1))
  grep -F "the configuration was not changed" /run/target.log | tail -n 1 | grep -qF "$why" ||
    fail "the log does not say: $why"
  await_visible 5
  [ $GENERATION = $generation ] || fail "after an error something has changed: $why"
}

target_config >/run/target.yaml; await_visible 10; klog_mark
alone='' with='' windows=0
# p999_high: p99.9 with reloads is too high. All sides share the CPUs, with the rest of the machine
# and with the reactions of the host to changes: the same allowance as in isolation.sh.
p999_high() {
  local a; a=$(median $alone)
  [ "$(median $with)" -gt $((2 * a > a + 250 ? 2 * a : a + 250)) ]
}
while [ $reloads -lt $RELOADS ]; do
  # Without reloads, too, now and then: the speed of the machine varies.
  if measuring && [ $((windows % 4)) = 0 ]; then
    beside watch; alone+=" $P999"
    say "without reloads: p99.9 $P999 ms, at most $MAX ms"
  fi
  beside reload_once; with+=" $P999" windows=$((windows + 1))
  say "$reloads reloads: p99.9 $P999 ms, at most $MAX ms; visible after $slowest ms at most"
done
say "p99.9 is$with ms, without reloads$alone ms; $late of $RELOADS reloads took too long"
! measuring || ! p999_high || fail "p99.9 is too high"
! measuring || [ $((10 * late)) -le $RELOADS ] || fail "changes are visible too late"
disconnect_all; target_stop
pkill -P $blocker; wait $blocker || true
