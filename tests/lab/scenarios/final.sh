# A deliberate removal is final: the kernel ends a controller when its subsystem or host was
# removed, at its next attempt to reconnect, and the block device of a removed namespace. A
# temporary absence is not final: the target is killed and comes back, or a configuration is not
# applied.
# variants: tcp rxe
# soak: soft
# covers: nvme/target internal/app
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-reload.sh"
[ "$TARGET" = ours ] || skip "the kernel's target has no configuration file"
OTHER=nqn.2026-11.io.nvmf-target:other
NAMESPACES=(1:ram:64MiB 2:ram:64MiB)
BROKEN='' REMOVED=''
target_config() { # with another subsystem, which stays
  local n
  echo "listeners: [{transport: $TRTYPE, address: \"$ADDR\", port: $PORT}]"
  echo "subsystems:"
  echo "  - {nqn: $OTHER, allow_any_host: true, namespaces: []}"
  [ -z "$REMOVED" ] || return 0
  echo "  - nqn: $NQN"
  echo "    hosts: [${ALLOWED:-$HOSTNQN}]"
  echo "    namespaces:"
  for n in "${NAMESPACES[@]}"; do
    IFS=: read -r nsid backend size <<<"$n"
    echo "      - {nsid: $nsid, backend: $backend, size: $size}"
  done
  [ -z "$BROKEN" ] || echo "$BROKEN"
}
change() { target_config >/run/target.yaml; reload; }
no_namespace() { [ -z "$(namespace_device "$1")" ]; } # NSID
retrying=(--reconnect-delay=1 --ctrl-loss-tmo=600)
lab_up; target_start; host_connect "${retrying[@]}"

say "only missing: the target is killed"
target_kill
wait_for 30 ctrl_lost
sleep 3 # the kernel tries and is refused by nobody
target_restart
wait_for 30 ctrl_live

say "only missing: a configuration that is not applied removes nothing"
NAMESPACES=(1:ram:64MiB) BROKEN="broken: [" ; target_config >/run/target.yaml
kill -HUP "$TPID"
wait_for 20 log_has "the configuration was not changed"
ctrl_live || fail "the controller is not live"
NAMESPACES=(1:ram:64MiB 2:ram:64MiB) BROKEN=''

say "a namespace is removed"
NAMESPACES=(1:ram:64MiB); change
wait_for 10 no_namespace 2
ctrl_live || fail "the controller has ended with its namespace"
io_works read 1

say "a host is removed"
ALLOWED=$HOSTNQN2; change
wait_for 30 no_controllers
klog_has "Connect for subsystem $NQN is not allowed, hostnqn: $HOSTNQN" ||
  fail "the host was refused in another way"
ALLOWED=''; change
host_connect "${retrying[@]}"

say "a subsystem is removed"
klog_mark
REMOVED=1; change
wait_for 30 no_controllers
klog_has 'reconnect|Removing' || { dmesg | tail; fail "the kernel says nothing of its attempt"; }
klog_mark
sleep 3
if klog_has "$NQN|Reconnecting|reconnect"; then dmesg | tail; fail "the kernel still tries"; fi

say "it is back"
REMOVED=''; change
host_connect
host_disconnect
target_stop
