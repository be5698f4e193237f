# The target as a unit of systemd. A user instance of systemd in the kernel of the lab restarts the
# target and keeps its descriptors, as the system instance does with the unit of packaging/.
# systemd_up comes before target_start; systemd_down, before the end of the scenario.
PACKAGING=$LAB_DIR/../../packaging
SYSTEMD_PIDS=()
systemd_up() {
  local s
  need systemctl
  export XDG_RUNTIME_DIR=/run/user/0
  UNITS=$XDG_RUNTIME_DIR/systemd/user
  mkdir -p /run/systemd/system "$UNITS"
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  printf '[Unit]\n' >"$UNITS/basic.target"
  # Confining the unit needs the system instance: see qemu/scenarios/systemd.sh.
  s='Type|Restart|RestartSec|WatchdogSec|TimeoutStopSec|FileDescriptorStoreMax|StartLimit[A-Za-z]*'
  {
    grep -E '^StartLimit|^\[Unit\]' $PACKAGING/systemd/nvmf-target.service
    echo '[Service]'
    grep -E "^($s)=" $PACKAGING/systemd/nvmf-target.service | grep -v '^StartLimit'
    echo "ExecStart=$TARGET_BIN serve --config /run/target.yaml"
    echo 'Environment=STATE_DIRECTORY=/run/state'
    echo 'StandardOutput=append:/run/target.log'
    echo 'StandardError=append:/run/target.log'
  } >"$UNITS/nvmf-target.service"
  SYSTEMD_UNIT_PATH=$UNITS: target_exec /lib/systemd/systemd --user --unit=basic.target \
    >/run/systemd.log 2>&1 &
  SYSTEMD_PIDS+=($!)
  wait_for 10 test -S $XDG_RUNTIME_DIR/systemd/private
}
systemd_down() {
  local p
  # A user instance that has no units for its end does not end by SIGTERM.
  for p in "${SYSTEMD_PIDS[@]}"; do kill -KILL "$p"; wait "$p" || true; done 2>/dev/null
}
# udev_up: systemd-udevd with the rule of packaging/, for the host.
udev_up() {
  mkdir -p /run/udev/rules.d
  cp $PACKAGING/udev/70-nvmf-target.rules /run/udev/rules.d/
  /lib/systemd/systemd-udevd >/run/udevd.log 2>&1 &
  SYSTEMD_PIDS+=($!)
  wait_for 10 test -S /run/udev/control
}
unit() { systemctl --user "$@" nvmf-target; }
unit_property() { unit show --value -p "$1"; }
unit_is_up() { # active, as another process than $TPID
  [ "$(unit_property ActiveState)" = active ] && [ "$(unit_property MainPID)" != "$TPID" ]
}
target_start() {
  target_config >/run/target.yaml
  unit start || { tail -n 20 /run/target.log; fail "the unit does not start"; }
  TPID=$(unit_property MainPID)
}
target_stop() { unit stop || fail "the unit does not stop"; TPID=''; }
# target_restart, target_kill: as an administrator does, and as a crash does. They return at once;
# target_is_back waits for it.
target_restart() { unit restart --no-block || fail "the unit does not restart"; }
target_kill() { kill -KILL "$TPID"; }
target_is_back() {
  wait_for 20 unit_is_up
  TPID=$(unit_property MainPID)
}
