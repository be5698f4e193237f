# The target as the packaged unit, unchanged, of a system instance of systemd in the kernel of the
# lab: with its user, its sandbox and its limits. A drop-in sends its output to /run/target.log, and
# gives access to disks. systemd has namespaces of processes and mounts, with writable copies of /etc
# and /usr, and an empty /var. /run is the same as outside.
# systemd_up comes before target_start; systemd_down, before the end of the scenario.
PACKAGING=$LAB_DIR/../../packaging
SYSTEMD_PIDS=()
systemd_up() {
  need systemctl
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir -p /run/systemd/system/nvmf-target.service.d
  printf '[Unit]\n' >/run/systemd/system/basic.target
  printf '%s\n' '[Service]' SupplementaryGroups=disk StandardOutput=append:/run/target.log \
    StandardError=append:/run/target.log >/run/systemd/system/nvmf-target.service.d/lab.conf
  export -f systemd_exec
  PACKAGING=$PACKAGING target_exec unshare --pid --fork --kill-child --mount --cgroup \
    bash -ec systemd_exec >/run/systemd.log 2>&1 &
  SYSTEMD_PIDS+=($!)
  wait_for 20 systemd_runs
}
systemd_runs() {
  [ -e /proc/${SYSTEMD_PIDS[0]} ] || { cat /run/systemd.log; fail "systemd does not start"; }
  [ -S /run/systemd/private ]
}
systemd_exec() { # the first process in the namespaces becomes systemd
  local d
  mount --make-rprivate /
  mount -t proc proc /proc
  for d in /etc /usr; do
    mkdir -p /run/copies$d /run/work$d
    mount -t overlay copies -o lowerdir=$d,upperdir=/run/copies$d,workdir=/run/work$d $d
  done
  mount -t tmpfs var /var
  mkdir /var/lib /var/log /var/tmp
  mount --bind /run/systemd.log /dev/console
  install -m 644 $PACKAGING/systemd/nvmf-target.service /run/systemd/system/
  systemd-sysusers $PACKAGING/systemd/nvmf-target.sysusers
  container=lab SYSTEMD_UNIT_PATH=/run/systemd/system: \
    exec /lib/systemd/systemd --unit=basic.target --log-target=console --show-status=no
}
systemd_down() {
  local p
  for p in "${SYSTEMD_PIDS[@]}"; do kill -KILL "$p"; wait "$p" || true; done 2>/dev/null
}
# inside COMMAND...: among the processes and mounts of systemd, where $TPID is the target.
inside() { nsenter -t "$(pgrep -P "${SYSTEMD_PIDS[0]}")" --mount --pid "$@"; }
# udev_up: systemd-udevd with the rule of packaging/, for the host.
udev_up() {
  mkdir -p /run/udev/rules.d
  cp $PACKAGING/udev/70-nvmf-target.rules /run/udev/rules.d/
  /lib/systemd/systemd-udevd >/run/udevd.log 2>&1 &
  SYSTEMD_PIDS+=($!)
  wait_for 10 test -S /run/udev/control
}
unit() { inside systemctl "$@" nvmf-target; }
unit_property() { unit show --value -p "$1"; }
unit_is_up() { # active, as another process than $TPID
  [ "$(unit_property ActiveState)" = active ] && [ "$(unit_property MainPID)" != "$TPID" ]
}
# target_install FILE: installs the program and the configuration as a package does.
target_install() {
  inside sh -ec "install -m 755 '$1' /usr/bin/nvmf-target.new
    mv /usr/bin/nvmf-target.new /usr/bin/nvmf-target
    install -D -m 640 -g nvmf-target /run/target.yaml /etc/nvmf-target/nvmf-target.yaml"
}
target_start() {
  target_config >/run/target.yaml
  target_install "$TARGET_BIN"
  unit start || { tail -n 20 /run/target.log; fail "the unit does not start"; }
  TPID=$(unit_property MainPID)
}
target_stop() { unit stop || fail "the unit does not stop"; TPID=''; }
# target_restart, target_kill: as an administrator does, and as a crash does. They return at once;
# target_is_back waits for it.
target_restart() { unit restart --no-block || fail "the unit does not restart"; }
target_kill() { inside kill -KILL "$TPID"; }
target_is_back() {
  wait_for 20 unit_is_up
  TPID=$(unit_property MainPID)
}
