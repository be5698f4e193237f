# The .deb with Debian's dpkg, systemd and AppArmor: a version is installed, configured and
# confined, and replaced by the next while a host writes and verifies over RDMA and TCP. The host
# sees no error and has the same disks afterwards; the configuration stays.
# variants: rxe
# covers: cmd/nvmf-target packaging internal/app
# nvmet: which has no package
# init: systemd
# packages: yes
# cpus: 2
# limit: 1440
. "$LAB_DIR/lib.sh"
C=/etc/nvmf-target/nvmf-target.yaml D=/var/lib/nvmf-target
property() { systemctl show --value -p "$1" nvmf-target; }
# version: of the serving process, not of the program on disk.
version() { nvmf-target status -o json | jq -r .version; }
new=$(dpkg-deb -f /run/out/packages/new.deb Version)
lab_up

say "install 0.0.1"
dpkg -i /run/out/packages/old.deb || fail "dpkg -i"
[ "$(property ActiveState)" = inactive ] || fail "an installation starts the target"
NAMESPACES=(1:file:64MiB:$D/disk0.img 2:block::/dev/ram1)
TARGET_LISTENERS=tcp/10.0.0.1/4421
target_config >$C; cp $C /tmp/edited
mkdir -p /etc/systemd/system/nvmf-target.service.d
printf '[Service]\nSupplementaryGroups=disk\n' \
  >/etc/systemd/system/nvmf-target.service.d/override.conf
systemctl daemon-reload
cp /usr/share/nvmf-target/apparmor /etc/apparmor.d/nvmf-target
apparmor_parser -r /etc/apparmor.d/nvmf-target || fail "the AppArmor profile cannot be loaded"
systemctl enable --now nvmf-target ||
  { journalctl -u nvmf-target --no-pager | tail -n 30; fail "the unit does not start"; }
pid=$(property MainPID)
# confined PROCESS
confined() { [ "$(cat "/proc/$1/attr/apparmor/current")" = "nvmf-target (enforce)" ]; }
confined "$pid" || fail "the AppArmor profile is not applied"
[ "$(version)" = 0.0.1 ] || fail "version $(version) runs"

say "connect over RDMA and TCP: two paths"
host_connect; RDMA=$CTRL
TRTYPE=tcp PORT=4421 host_connect; TCP=$CTRL
for c in "$RDMA" "$TCP"; do
  [ "$(cat "/sys/class/nvme/$c/ctrl_loss_tmo")" = 600 ] || fail "ctrl_loss_tmo is not the default"
done
for p in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >"$p"; done
live() { local c; for c in "$RDMA" "$TCP"; do CTRL=$c ctrl_live || return 1; done; }
# disks: the number of each, which the kernel does not reuse.
disks() {
  local n
  for n in 1 2; do cat "/sys/class/block/$(basename "$(namespace_device $n)")/diskseq"; done
}
before=$(disks)
fio_verify file --iodepth=8 --bs=4k --size=1M --offset=32M
# An emulated machine unpacks for a minute: fio is repeated until the upgrade is done.
loads() {
  until [ -e /tmp/upgraded ]; do
    fio_on "$1" "load$1" --iodepth=4 --bs=16k --size=16M --time_based --runtime=10
  done
}
loads 1 & FILE_PID=$!
loads 2 & BLOCK_PID=$!
io_mark
wait_for 20 io_moved 100

say "upgrade to $new"
# The package has a new configuration: keep the edited one.
dpkg -i /run/out/packages/new.deb <<<N || fail "dpkg -i"
systemctl status nvmf-target --no-pager -n 0 || fail "it does not run"
[ "$(property MainPID)" != "$pid" ] || fail "it was not restarted"
[ "$(version)" = "$new" ] || fail "version $(version) runs"
[ "$(systemctl is-enabled nvmf-target)" = enabled ] || fail "it is no longer enabled"
confined "$(property MainPID)" || fail "the AppArmor profile is no longer applied"
cmp $C /tmp/edited || fail "the configuration was replaced"
[ -e $C.dpkg-dist ] || fail "the configurations of both packages are the same"
[ -z "$(dpkg --audit)" ] || fail "dpkg --audit: $(dpkg --audit)"
# upgraded reports whether both paths are live and the new version answers on them. The kernel logs
# nothing on success where the target has asked it to reset the controller.
upgraded() {
  local c
  live || return 1
  for c in "$RDMA" "$TCP"; do nvme id-ctrl "/dev/$c" | grep -q "^fr .*: $new *\$" || return 1; done
}
wait_for 70 upgraded
: >/tmp/upgraded
dmesg | sed "1,/$KLOG_MARK/d" | grep 'nvme nvme' || true
wait "$FILE_PID" || fail "fio ended with exit code $?"
wait "$BLOCK_PID" || fail "fio ended with exit code $?"
fio_run after --rw=randread --verify=crc32c --verify_fatal=1 --verify_only --norandommap=0 \
  --iodepth=8 --bs=4k --size=1M --offset=32M
[ "$(disks)" = "$before" ] || fail "a disk was removed: $before is now $(disks)"
# errors prints what the host has seen. A read-ahead is none: Linux never repeats it
# (blk_noretry_request), and a reader that needs the blocks reads them again. The fifth digit of its
# flags is 8 or above (REQ_RAHEAD).
errors() {
  dmesg | sed "0,/$KLOG_MARK/d" | grep -Ev 'I/O error.* flags 0x[0-9a-f]*[89a-f][0-9a-f]{4} ' |
    grep -E 'I/O error|[Rr]emoving'
}
! errors || { dmesg | tail -n 60; fail "the host has seen an error"; }
! dmesg | grep 'apparmor="DENIED".*profile="nvmf-target"' ||
  fail "the AppArmor profile denies what the target needs"
host_disconnect
