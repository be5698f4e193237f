# packaging/ under Debian's systemd: the unit is ready when it serves, without root; it reloads,
# restarts after a crash and when it hangs, and reports why it does not start. Its confinement does
# not keep the target from RDMA, disks, NVMe drives, io_uring, CPUs, multicast DNS, credentials and
# programs that print keys; nor does the AppArmor profile (APPARMOR=1). The udev rule of hosts. The
# log of the kernel is not checked, since crashes and hangs cause warnings.
# variants: rxe
# covers: cmd/nvmf-target packaging internal/app internal/httpd internal/sys
# nvmet: which has no unit file
# init: systemd
# nvme: yes
# cpus: 2
# limit: 1200
. "$LAB_DIR/lib.sh"
P=/run/out/packaging
# journal WORD: the unit's journal has it. Another process writes it, so wait for it.
journal() { journalctl -u nvmf-target --no-pager | grep -i "$1"; }
property() { systemctl show --value -p "$1" nvmf-target; }
install -D -m 755 "$TARGET_BIN" /usr/bin/nvmf-target
install -D -m 644 $P/systemd/nvmf-target.service /etc/systemd/system/nvmf-target.service
install -D -m 644 $P/systemd/nvmf-target.sysusers /usr/lib/sysusers.d/nvmf-target.conf
install -D -m 644 $P/udev/70-nvmf-target.rules /etc/udev/rules.d/70-nvmf-target.rules
systemd-sysusers; systemctl daemon-reload; udevadm control --reload
systemd-analyze verify nvmf-target.service 2>&1 | tee /tmp/verify
[ ! -s /tmp/verify ] || fail "systemd-analyze verify reports problems"
lab_up
modprobe nvme
# drive NAME PREFIX: a device of the drive's namespace; the kernel's numbers vary.
drive() {
  local c serial d
  for c in /sys/class/nvme/nvme*; do
    read -r serial <"$c/serial"
    [ "$serial" = "lab-$1" ] || continue
    for d in "$c/$2"*n*; do [ ! -e "$d" ] || echo "/dev/${d##*/}"; done
  done
}
has_drives() { [ -b "$(drive first nvme)" ] && [ -c "$(drive second ng)" ]; }
wait_for 60 has_drives
chgrp disk "$(drive second ng)"; chmod 660 "$(drive second ng)"
NAMESPACES=(1:ram:256MiB 2:file:64MiB:/var/lib/nvmf-target/disk0.img
  4:block::"$(drive first nvme)" 5:nvme::"$(drive second ng)")
TARGET_LISTENERS=tcp/10.0.0.1/421
mkdir -p /etc/nvmf-target; target_config >/etc/nvmf-target/nvmf-target.yaml
cat >>/etc/nvmf-target/nvmf-target.yaml <<'EOF'
disks: {engine: io_uring}
reactors: {count: 1, cpus: [1]}
discovery: {mdns: true}
control: {group: disk}
hosts:
  - nqn: nqn.2026-11.io.nvmf-target:other
    dhchap_key_file: "${CREDENTIALS_DIRECTORY}/key"
    dhchap_old_key_command: [/bin/sh, -c, 'sed s/x/x/ "$CREDENTIALS_DIRECTORY/old" | cat']
EOF
for k in key old; do (umask 077; nvmf-target key gen >/etc/nvmf-target/$k); done
mkdir -p /run/systemd/system/nvmf-target.service.d
cat >/run/systemd/system/nvmf-target.service.d/lab.conf <<'EOF'
[Service]
SupplementaryGroups=disk
LoadCredential=key:/etc/nvmf-target/key
LoadCredential=old:/etc/nvmf-target/old
# A port below 1024, and the privileges that the target drops.
AmbientCapabilities=CAP_NET_BIND_SERVICE CAP_KILL
CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_KILL
EOF
systemctl daemon-reload
if [ -e /run/out/apparmor/policy ]; then
  cat /run/out/apparmor/policy >/sys/kernel/security/apparmor/.replace ||
    fail "the kernel does not take the AppArmor profile"
fi

say "start"
systemctl start nvmf-target ||
  { journalctl -u nvmf-target --no-pager | tail -n 30; fail "the unit does not start"; }
pid=$(property MainPID)
say "$(property ActiveState), $(ps -o user:16=,rss= -p "$pid"), status: $(property StatusText)"
[ "$(ps -o user:16= -p "$pid")" = nvmf-target ] || fail "the target does not run as nvmf-target"
[ ! -e /run/out/apparmor/policy ] ||
  [ "$(cat "/proc/$pid/attr/apparmor/current")" = "nvmf-target (enforce)" ] ||
  fail "the AppArmor profile is not applied"
[ "$(stat -c %U /var/lib/nvmf-target/disk0.img)" = nvmf-target ] ||
  fail "disk0.img does not belong to nvmf-target"
cat /proc/"$pid"/task/*/status >/tmp/status
say "threads: $(grep -E '^(Cap|NoNewPrivs)' /tmp/status | sort | uniq -c | tr -s '\t\n ' ' ')"
grep -E '^Cap(Prm|Eff|Amb)' /tmp/status | grep -v '0000000000000400$' &&
  fail "the target has other capabilities than CAP_NET_BIND_SERVICE"
grep '^NoNewPrivs' /tmp/status | grep -v '1$' && fail "no_new_privs is not set"
[ "$(stat -c %G /run/nvmf-target/control.sock)" = disk ] || fail "the group of the control socket"
[ "$(cat "/sys/fs/cgroup$(property ControlGroup)/memory.swap.max")" = 0 ] || fail "it can be swapped"
cp $P/systemd/nvmf-target.service /tmp/alone.service # the drop-in gives away some of it
systemd-analyze security --no-pager --offline=true --threshold=20 /tmp/alone.service >/tmp/score ||
  fail "too much is exposed: $(tail -n 1 /tmp/score)"
say "$(tail -n 1 /tmp/score)"

for t in rdma/4420 tcp/421; do
  TRTYPE=${t%/*} PORT=${t#*/}
  say "connect over $TRTYPE"
  host_connect; udevadm settle
  [ "$(cat "/sys/class/nvme/$CTRL/ctrl_loss_tmo")" = off ] ||
    fail "the udev rule did not set ctrl_loss_tmo"
  [ "$(cat "/sys/class/nvme/$CTRL/reconnect_delay")" = 1 ] ||
    fail "the udev rule did not set reconnect_delay"
  grep -h . /sys/class/nvme-subsystem/*/iopolicy | grep -qx queue-depth ||
    fail "the udev rule did not set iopolicy"
  fio_verify "$TRTYPE" --iodepth=8 --bs=4k --size=1M
  fio_on 2 "$TRTYPE-file" --iodepth=8 --bs=64k --size=8M
  fio_on 4 "$TRTYPE-block" --iodepth=8 --bs=64k --size=4M
  fio_on 5 "$TRTYPE-nvme" --iodepth=8 --bs=64k --size=4M
  [ "$TRTYPE" = tcp ] || host_disconnect
done

say "a reload"
C=/etc/nvmf-target/nvmf-target.yaml
sed -i 's/^ *- {nsid: 1,.*/&\n      - {nsid: 3, backend: ram, size: 32MiB}/' $C
systemctl reload nvmf-target || { systemctl status nvmf-target --no-pager; fail "no reload"; }
[ "$(property MainPID)" = "$pid" ] || fail "it was restarted"
has_third() { nvme list-ns "/dev/$CTRL" | grep -q ':0x3$'; }
wait_for 5 has_third
sed 's/allow_any_host/allow_any_hots/' $C >/tmp/broken; cp $C /tmp/good; cat /tmp/broken >$C
systemctl reload nvmf-target && fail "a broken configuration was reloaded"
wait_for 10 journal allow_any_hots
cat /tmp/good >$C
fio_verify after-reload --iodepth=8 --bs=4k --size=1M

say "a crash"
restarted() { [ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != "$pid" ]; }
keeps_socket() { # that of TCP
  [ "$(property NFileDescriptorStore)" = 1 ] || fail "systemd does not keep the listening socket"
}
keeps_socket
kill -KILL "$pid"
wait_for 30 restarted
wait_for 60 ctrl_live
keeps_socket
fio_verify after-crash --iodepth=8 --bs=4k --size=1M
say "a restart: the host resets, and finds the socket"
found_socket() {
  klog_mark; pid=$(property MainPID)
  systemctl restart nvmf-target || fail "it does not restart"
  restarted || fail "it was not restarted"
  wait_for 60 ctrl_live
  klog_has "$CTRL: resetting controller due to" &&
    ! klog_has "$CTRL: (Reconnecting|failed to connect)"
}
# An emulated host does not always begin its reset within the second that the target waits for it.
found_socket || found_socket || found_socket ||
  fail "three times the host has not reset the controller, or did not find the socket"
keeps_socket
fio_verify after-restart --iodepth=8 --bs=4k --size=1M
say "a hang: the watchdog"
printf '[Service]\nWatchdogSec=10\n' \
  >/run/systemd/system/nvmf-target.service.d/watchdog.conf
systemctl daemon-reload; systemctl restart nvmf-target || fail "it does not restart"
pid=$(property MainPID); kill -STOP "$pid"
wait_for 60 restarted
wait_for 10 journal watchdog # the reason
wait_for 60 ctrl_live
host_disconnect

say "stop"
systemctl stop nvmf-target
[ "$(property Result)" = success ] || fail "the result is $(property Result)"
say "a broken configuration"
sed -i 's/allow_any_host/allow_any_hots/' /etc/nvmf-target/nvmf-target.yaml
systemctl start nvmf-target && fail "it started with a broken configuration"
wait_for 10 journal allow_any_hots # the error names it
! dmesg | grep 'apparmor="DENIED".*profile="nvmf-target"' ||
  fail "the AppArmor profile denies what the target needs"
