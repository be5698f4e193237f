# A host finds the target by itself: avahi hears its multicast DNS, stafd of nvme-stas connects to
# the discovery service, and stacd to the subsystem, and to another one as long as there is one.
# variants: tcp
# covers: internal/mdns nvme/target
# limit: 400
# debian: nvme-stas avahi-daemon dbus udev
. "$LAB_DIR/lib.sh"
[ "$TARGET" = ours ] || skip "the kernel's target does not announce itself"
NAMESPACES=(1:ram:64MiB)
OTHER=''
copy_function target_config plain_config
target_config() {
  plain_config
  [ -z "$OTHER" ] ||
    printf '  - {nqn: "%s", allow_any_host: true, namespaces: [{nsid: 1, backend: ram, size: 1MiB}]}\n' \
      $NQN-other
  echo "discovery: {mdns: true}"
}
reload() { # OTHER
  local n; n=$(log_count "the configuration was applied")
  OTHER=$1; target_config >/run/target.yaml; kill -HUP "$TPID"
  wait_for 10 log_has "the configuration was applied" $((n + 1))
}
lab_up; target_start

for d in proc sys dev; do mount --rbind /$d "$DEBIAN_ROOT/$d"; done
for d in run tmp etc/stas var/cache; do mount -t tmpfs tmp "$DEBIAN_ROOT/$d"; done
mkdir "$DEBIAN_ROOT/run/dbus"
printf '[Host]\nnqn=%s\nid=%s\n' $HOSTNQN $HOSTID >"$DEBIAN_ROOT/etc/stas/sys.conf"
debian() { chroot "$DEBIAN_ROOT" "$@"; }
debian /usr/lib/systemd/systemd-udevd --daemon 2>/dev/null # its events tell stafd of changes
debian dbus-daemon --system --fork
debian avahi-daemon --daemonize --no-drop-root --no-chroot --no-rlimits
for d in stafd stacd; do
  mkdir -p "$DEBIAN_ROOT"/{run,var/cache}/$d
  debian python3 -u /usr/sbin/$d --tron >/run/$d.log 2>&1 &
done
found() { # NQN yes|no: stacd has a controller of that name, or has not
  debian stacctl ls >/run/ls 2>/dev/null || return 1
  if grep -qF "'subsysnqn': '$1'" /run/ls; then [ "$2" = yes ]; else [ "$2" = no ]; fi
}
await() { say "stacd has a controller of $1: $2"; wait_for 30 found "$1" "$2"; }
copy_function fail plain_fail
fail() { tail -n 30 /run/sta[fc]d.log; plain_fail "$@"; }
await $NQN yes
debian stafctl ls
wait_for 10 all_namespaces
dd if="$(namespace_device 1)" of=/dev/null bs=1M count=4 iflag=direct status=none
reload yes; await $NQN-other yes
wait_for 10 eval '[ -n "$(NQN=$NQN-other controllers)" ]'
other=$(NQN=$NQN-other controllers)
reload ''; await $NQN-other no
wait_for 10 eval 'NQN=$NQN-other no_controllers'
[ -n "$(controllers)" ] || fail "the controller of $NQN is gone"
! grep -i "registration error\|failed to register" /run/stafd.log || fail "stafd registers"
# For the removed subsystem; udev may still be reading its disk.
klog_check "nvme $other: |block ${other}n1: |Buffer I/O error on dev ${other}n1,"
target_stop
