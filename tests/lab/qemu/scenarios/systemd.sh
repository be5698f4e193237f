# packaging/ under Debian's systemd: the unit is ready when it serves, without root; it reloads,
# restarts after a crash and when it hangs, and says why it does not start. The udev rule of hosts.
# The log of the kernel is not checked, since crashes and hangs cause warnings.
# variants: rxe
# init: systemd
# cpus: 2
# limit: 710
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
NAMESPACES=(1:ram:256MiB 2:file:64MiB:/var/lib/nvmf-target/disk0.img)
TARGET_LISTENERS=tcp/10.0.0.1/4421
mkdir -p /etc/nvmf-target; target_config >/etc/nvmf-target/nvmf-target.yaml

say "start"
systemctl start nvmf-target ||
  { journalctl -u nvmf-target --no-pager | tail -n 30; fail "the unit does not start"; }
pid=$(property MainPID)
say "$(property ActiveState), $(ps -o user:16=,rss= -p "$pid"), status: $(property StatusText)"
[ "$(ps -o user:16= -p "$pid")" = nvmf-target ] || fail "the target does not run as nvmf-target"
[ "$(stat -c %U /var/lib/nvmf-target/disk0.img)" = nvmf-target ] ||
  fail "disk0.img does not belong to nvmf-target"
grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/"$pid"/status | grep -v '0000000000000000$' &&
  fail "the target has capabilities"
systemd-analyze security --no-pager nvmf-target | tail -n 1

for t in rdma/4420 tcp/4421; do
  TRTYPE=${t%/*} PORT=${t#*/}
  say "connect over $TRTYPE"
  host_connect; udevadm settle
  [ "$(cat "/sys/class/nvme/$CTRL/ctrl_loss_tmo")" = off ] ||
    fail "the udev rule did not set ctrl_loss_tmo"
  grep -h . /sys/class/nvme-subsystem/*/iopolicy | grep -qx queue-depth ||
    fail "the udev rule did not set iopolicy"
  fio_verify "$TRTYPE" --iodepth=8 --bs=4k --size=1M
  fio_on 2 "$TRTYPE-file" --iodepth=8 --bs=64k --size=8M
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
kill -KILL "$pid"
restarted() { [ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != "$pid" ]; }
wait_for 30 restarted
wait_for 60 ctrl_live
fio_verify after-crash --iodepth=8 --bs=4k --size=1M
say "a hang: the watchdog"
mkdir -p /run/systemd/system/nvmf-target.service.d
printf '[Service]\nWatchdogSec=4\n' \
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
