# The target: ours or the kernel's, with the same namespaces.
TPID='' NOTIFY_PID=''
# NSID:BACKEND:SIZE[:PATH[:BLOCK SIZE]], for instance 1:ram:1GiB 2:file:256MiB:/run/disk.img:4096
# 3:block::/dev/loop0
NAMESPACES=()
ALLOWED=''             # host NQNs, blank separated; any host if empty
TARGET_LISTENERS=''    # more listeners, as TRANSPORT/ADDRESS/PORT
METRICS=127.0.0.1:9500 # of our target without an RDMA device; see held
: "${SPIN:=}"          # reactors.spin of our target; its default if empty

# target_start: starts the target and waits until it is ready.
target_start() { "${TARGET}_start"; }
target_stop() { "${TARGET}_stop"; }
target_kill() { "${TARGET}_kill"; }
target_restart() { "${TARGET}_restart"; }

target_config() {
  local l transport address port n nsid backend size path bs
  [ -z "$SPIN" ] || echo "reactors: {spin: $SPIN}"
  [ $LINK != soft ] || echo "metrics: {listen: \"$METRICS\"}"
  echo "listeners:"
  for l in $TRTYPE/$ADDR/$PORT $TARGET_LISTENERS; do
    IFS=/ read -r transport address port <<<"$l"
    echo "  - {transport: $transport, ${SOFT_STACK}address: \"$address\", port: $port}"
  done
  echo "subsystems:"
  echo "  - nqn: $NQN"
  if [ -z "$ALLOWED" ]; then
    echo "    allow_any_host: true"
  else
    echo "    hosts: [${ALLOWED// /, }]"
  fi
  echo "    namespaces:"
  for n in "${NAMESPACES[@]}"; do
    IFS=, read -r nsid backend size path bs <<<"${n//:/,}"
    printf '      - {nsid: %s, backend: "%s"%s%s%s}\n' "$nsid" "$backend" "${size:+, size: $size}" \
      "${path:+, path: $path}" "${bs:+, block_size: $bs}"
  done
}

ours_start() {
  [ -x "$TARGET_BIN" ] || fail "TARGET_BIN=$TARGET_BIN is not an executable file"
  target_config >/run/target.yaml
  : >/run/notify.log
  if [ ! -S /run/notify ]; then
    need socat
    socat -u UNIX-RECV:/run/notify OPEN:/run/notify.log,append,creat & NOTIFY_PID=$!
    wait_for 5 test -S /run/notify
  fi
  # its keys are for nobody's log
  say "target: $(tr '\n' ' ' </run/target.yaml | sed -E 's/"(DHHC|NVMeTLSkey)-1:[^"]*"/"a key"/g')"
  NOTIFY_SOCKET=/run/notify STATE_DIRECTORY=/run/state \
    ours_exec serve --config /run/target.yaml >>/run/target.log 2>&1 &
  TPID=$!
  echo $TPID >/run/target.pid
  wait_for 20 ours_ready
}
# exec keeps the process ID: $TPID is the target itself.
ours_exec() {
  if [ $LINK = soft ] && [ -z "${AS_ROOT:-}" ]; then
    # TARGET_BIN may be in a directory of root.
    mkdir -p /run/bin; install -m 755 "$TARGET_BIN" /run/bin/nvmf-target
    export RUNTIME_DIRECTORY=/run/nvmf-target
    mkdir -p $RUNTIME_DIRECTORY $STATE_DIRECTORY /run/disk
    chown -R nobody $RUNTIME_DIRECTORY $STATE_DIRECTORY /run/disk /run/notify
    target_exec setpriv --reuid=nobody --regid=nogroup --clear-groups --no-new-privs \
      --inh-caps=-all --bounding-set=-all /run/bin/nvmf-target "$@"
  fi
  target_exec "$TARGET_BIN" "$@"
}
target_exec() { # COMMAND...: like on_target, in place of this process
  if [ $TOPOLOGY = two ]; then exec nsenter --net=/run/netns/target "$@"; else exec "$@"; fi
}
ours_ready() {
  [ -e /proc/$TPID ] || fail "the target ended before it was ready"
  grep -q READY=1 /run/notify.log
}
ours_stop() {
  local rc=0
  kill -TERM "$TPID"
  wait_for 20 ours_ended
  wait "$TPID" || rc=$?
  [ $rc = 0 ] || fail "the target ended with exit code $rc after SIGTERM"
  TPID=''
}
ours_ended() { ! [ -e /proc/$TPID ] || grep -qs '^State:.*Z' /proc/$TPID/status; }
ours_kill() { kill -KILL "$TPID"; wait "$TPID" 2>/dev/null || true; }
ours_restart() { ours_start; }

# The log of our target. A line may come later than the event, because another goroutine writes it:
# wait for it. texts_test.go checks that each TEXT is one of the source.
# log_has TEXT [N]: it has N lines or more (1) with TEXT. log_count TEXT: prints how many it has.
# logged TEXT [N]: waits for them.
log_has() { [ "$(log_count "$1")" -ge "${2:-1}" ]; }
logged() { wait_for 10 log_has "$@"; }
log_count() { grep -cF -- "$1" /run/target.log || true; }

# The kernel's target: null_blk for ram (memory backed) and null, the file itself for file.
nvmet_start() {
  local l transport address port cfg=/sys/kernel/config/nvmet sub n nsid backend size path bs h ns
  sub=$cfg/subsystems/$NQN
  mkdir "$sub"
  if [ -z "$ALLOWED" ]; then echo 1 >"$sub/attr_allow_any_host"; else
    for h in $ALLOWED; do
      mkdir -p "$cfg/hosts/$h"; ln -s "$cfg/hosts/$h" "$sub/allowed_hosts/$h"
    done
  fi
  for n in "${NAMESPACES[@]}"; do
    IFS=, read -r nsid backend size path bs <<<"${n//:/,}"
    case $backend in
      ram) path=$(null_blk ram$nsid "$size" 1 "${bs:-512}") ;;
      null) path=$(null_blk null$nsid "$size" 0 "${bs:-512}") ;;
      file) [ -e "$path" ] || truncate -s "$(numfmt --from=iec "${size%iB}")" "$path" ;;
    esac
    ns=$sub/namespaces/$nsid; mkdir "$ns"
    echo -n "$path" >"$ns/device_path"; [ "$backend" = file ] && echo 1 >"$ns/buffered_io"
    echo 1 >"$ns/enable"
  done
  for l in $TRTYPE/$ADDR/$PORT $TARGET_LISTENERS; do
    IFS=/ read -r transport address port <<<"$l"
    nvmet_port "$transport" "$address" "$port"
  done
  nvmet_restart
}
null_blk() { # NAME SIZE MEMORY_BACKED BLOCK_SIZE: prints the device
  local name=${NULL_PREFIX:-lab}-$1
  null_disk "$name" size=$(($(numfmt --from=iec "${2%iB}") / 1048576)) memory_backed="$3" \
    blocksize="$4" discard="$3" completion_nsec=0
}
# null_disk NAME ATTRIBUTE=VALUE...: makes a null_blk device, powers it on and prints it.
null_disk() {
  local d=/sys/kernel/config/nullb/$1 a; shift
  mkdir "$d"
  for a in queue_mode=2 irqmode=0 "$@" power=1; do echo "${a#*=}" >"$d/${a%=*}"; done
  null_node "${d##*/}"
}
null_node() { # NAME: prints the device of a null_blk that is powered on
  local index
  index=$(cat "/sys/kernel/config/nullb/$1/index")
  wait_for 5 eval "[ -b /dev/$1 ] || [ -b /dev/nullb$index ]"
  if [ -b "/dev/$1" ]; then echo "/dev/$1"; else echo "/dev/nullb$index"; fi
}
null_power() { echo "$2" >"/sys/kernel/config/nullb/$1/power"; } # NAME 0|1
nvmet_port() { # TRTYPE ADDRESS PORT
  local ports=/sys/kernel/config/nvmet/ports p
  p=$ports/$(($(find $ports -mindepth 1 -maxdepth 1 | wc -l) + 1))
  mkdir "$p"
  echo "$1" >"$p/addr_trtype"; echo ipv$FAMILY >"$p/addr_adrfam"
  echo "$2" >"$p/addr_traddr"; echo "$3" >"$p/addr_trsvcid"
}
nvmet_restart() {
  local p
  for p in /sys/kernel/config/nvmet/ports/*; do
    ln -s "/sys/kernel/config/nvmet/subsystems/$NQN" "$p/subsystems/$NQN"
  done
}
nvmet_kill() { rm /sys/kernel/config/nvmet/ports/*/subsystems/"$NQN"; }
nvmet_stop() { nvmet_kill; }

# The objects that the target holds, as far as visible.
target_fds() { [ "$TARGET" = nvmet ] || find "/proc/$TPID/fd" -mindepth 1 | wc -l; }
target_rss() { [ "$TARGET" = nvmet ] || awk '/^VmRSS/{print $2}' "/proc/$TPID/status"; }
target_threads() { [ "$TARGET" = nvmet ] || awk '/^Threads/{print $2}' "/proc/$TPID/status"; }
target_cpu() { # ticks of 10 ms
  [ "$TARGET" = nvmet ] || awk '{sub(/.*\) /, ""); print $12 + $13}' "/proc/$TPID/stat"
}
target_switches() {
  [ "$TARGET" = nvmet ] ||
    cat "/proc/$TPID"/task/*/status | awk '/_ctxt_switches/{n += $2} END {print n}'
}
target_controllers() {
  [ "$TARGET" = ours ] || find /sys/kernel/debug/nvmet -maxdepth 2 -name 'ctrl*' | wc -l
}
# rdma_count KIND: how many objects of that kind (qp, cm_id, mr, pd, cq) the target has. The kernel
# names the thread that created one, not the process.
rdma_count() {
  local lines
  lines=$(rdma resource show "$1" 2>/dev/null) || true
  if [ "$TARGET" = nvmet ]; then
    grep -cE "link target0|dev target0| target0/" <<<"$lines" || true
  else
    grep -c "comm nvmf-target" <<<"$lines" || true
  fi
}
