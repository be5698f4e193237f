# Namespaces on NVMe drives, by NVMe commands (backend nvme): the conformance suite on a drive, fio
# with checksums over soft RoCE and TCP; discards and zeroes arrive at the backing store of the
# drive; unsuitable drives are refused; hosts read the health of the drives.
# variants: rxe
# covers: backend/nvmedrive internal/passthru
# nvmet: which sends other commands to drives
# nvme: yes
# go-test: ./backend/nvmedrive
# cpus: 2
# limit: 1340
. "$LAB_DIR/lib.sh"
need blkdiscard setpriv
modprobe nvme
controller() { # NAME: the controller of a drive
  local c serial
  for c in /sys/class/nvme/nvme*; do
    read -r serial <"$c/serial"
    [ "$serial" != "lab-$1" ] || echo "${c##*/}"
  done
}
# device NAME PREFIX: a device of the drive's namespace; the kernel's numbers vary.
device() {
  local c d
  c=$(controller "$1")
  for d in /sys/class/nvme/"${c:-none}"/"$2"*n*; do [ ! -e "$d" ] || echo "/dev/${d##*/}"; done
}
char() { device "$1" ng; }
block() { device "$1" nvme; }
present() { [ -c "$(char "$1")" ] && [ -b "$(block "$1")" ]; }
for d in first second suite meta; do wait_for 60 present $d; done

say "the conformance suite on $(char suite)"
NVMF_TEST_NVME=$(char suite) "$TEST_BIN" -test.v -test.run TestDevice -test.timeout 400s \
  >/run/conf.log 2>&1 ||
  { grep -vE '^=== RUN|--- PASS' /run/conf.log | tail -n 60; fail "the suite does not pass"; }
for e in io_uring threads; do
  grep -q "^ *--- PASS: TestDevice/$e " /run/conf.log || fail "the suite did not run with $e"
done
say "$(grep -c '^ *--- PASS' /run/conf.log) tests passed"

lab_up
# refused NAMESPACE WORDS COMMAND...: the target says WORDS and does not start.
refused() {
  local words=$2
  NAMESPACES=("$1"); shift 2
  target_config >/run/target.yaml
  "$@" timeout 120 "$TARGET_BIN" serve --config /run/target.yaml >/tmp/refused 2>&1 &&
    fail "a target with ${NAMESPACES[0]} runs"
  grep -F -- "$words" /tmp/refused ||
    { cat /tmp/refused; fail "the target does not say \"$words\""; }
}
say "what cannot be exported"
refused "1:nvme::$(char meta)" "8 bytes of metadata per block"
refused 1:nvme::/dev/vda "not a namespace of an NVMe drive; use backend: block"
refused 1:nvme::/dev/ng9n9 "no such device"
mkfs.ext4 -q -F "$(block second)"; mkdir -p /tmp/mounted; mount "$(block second)" /tmp/mounted
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
refused "1:nvme::$(char second)" "has the block device $(block second), which is in use: mounted at /tmp/mounted"
umount /tmp/mounted
refused "1:nvme::$(char second)" "cannot be opened: permission denied" as_nobody

NAMESPACES=("1:nvme::$(char first)" "2:nvme::$(block second)")
TARGET_LISTENERS=tcp/10.0.0.1/4421
target_start
"$TARGET_BIN" disks --config /run/target.yaml | tee /tmp/disks
grep -q "namespace 2 of $NQN" /tmp/disks || fail "disks does not say who uses the drive"
mount "$(block first)" /tmp/mounted 2>/dev/null &&
  fail "the drive can be mounted while the target uses it"
for t in rdma/4420 tcp/4421; do
  TRTYPE=${t%/*} PORT=${t#*/}
  host_connect
  for nsid in 1 2; do
    for work in 4k:512k 64k:2M 1M:8M; do
      fio_on $nsid "$TRTYPE-ns$nsid-${work%:*}" --iodepth=8 --bs=${work%:*} --size=${work#*:}
    done
    fio_run "$TRTYPE-ns$nsid-fua" --rw=randwrite --sync=dsync --bs=4k --iodepth=4 --size=1M
  done
  [ "$TRTYPE" = tcp ] || host_disconnect
done

say "discard and write zeroes"
DEV=$(namespace_device 1)
image=/run/out/first.img
head -c 16M /dev/urandom >/tmp/random
dd if=/tmp/random of="$DEV" bs=1M oflag=direct status=none; before=$(du -B1 $image | cut -f1)
blkdiscard -o 0 -l 8M "$DEV" || fail "blkdiscard"
after=$(du -B1 $image | cut -f1)
say "a discard of 8 MiB made $((before >> 20)) MiB of the backing store $((after >> 20))"
[ $((before - after)) -ge $((7 << 20)) ] || fail "the space was not freed"
blkdiscard -z -o 8M -l 4M "$DEV" || fail "write zeroes"
cmp <(head -c 4M /dev/zero) <(dd if=$image bs=1M skip=8 count=4 status=none) ||
  fail "the backing store has no zeroes"
cmp <(tail -c 4M /tmp/random) <(dd if=$image bs=1M skip=12 count=4 status=none) ||
  fail "too much was zeroed or discarded"

# smart DEVICE FILE OPTIONS: the health that nvme-cli prints, a field and its value per line
smart() {
  local d=$1 f=$2; shift 2
  nvme smart-log "$d" "$@" | tail -n +2 |
    sed -E 's/,//g; s/[[:space:]]*:[[:space:]]*([0-9a-fx]+).*/\t\1/' >"$f"
  [ "$(wc -l <"$f")" -ge 15 ] || fail "smart-log of $d is short"
}
# same NAME NAMESPACE: each value that a host reads of a namespace lies between the values of the
# drive before and after. Values that did not change are equal.
same() {
  sleep 1.2 # the target queries at most once a second
  smart "/dev/$(controller "$1")" /tmp/before
  smart "/dev/$CTRL" /tmp/host -n "$2"
  smart "/dev/$(controller "$1")" /tmp/after
  paste /tmp/before /tmp/host /tmp/after | awk -F'\t' '
    { before = $2 + 0; host = $4 + 0; after = $6 + 0 }
    $1 != $3 || $1 != $5 { print "other fields: " $0; bad = 1 }
    $2 == $6 && $4 != $2 ||
    $2 != $6 && (host < before && host < after || host > before && host > after) {
      print "differs: " $0; bad = 1
    }
    $2 == $6 { n++ }
    END { print "   " NR " fields, " n " of them unchanged"; exit bad }' ||
    fail "$1: a host reads another health than the drive's"
}
field() { awk -F'\t' -v f="$1" '$1 == f {print $2}' "$2"; }
say "health of each drive"
same first 1; written=$(field host_write_commands /tmp/host)
[ "$written" -gt 100 ] || fail "the drive counted $written writes"
same second 2
say "health of both together"
for d in first second; do smart "/dev/$(controller $d)" /tmp/$d; done
smart "/dev/$CTRL" /tmp/host
for f in host_read_commands host_write_commands; do
  [ "$(field $f /tmp/host)" = $(($(field $f /tmp/first) + $(field $f /tmp/second))) ] ||
    fail "$f of both drives is not the sum"
done
[ "$(field temperature /tmp/host)" = "$(field temperature /tmp/first)" ] ||
  fail "the temperature is not a drive's"
host_disconnect
target_stop

TARGET_LISTENERS='' # only tcp from here on
say "the same drive through the block layer"
NAMESPACES=("1:block::$(block first)")
target_start; host_connect
fio_verify block --iodepth=8 --bs=64k --size=2M
same first 1; same first 0xffffffff
host_disconnect; target_stop

say "without io_uring"
echo 2 >/proc/sys/kernel/io_uring_disabled
NAMESPACES=("1:nvme::$(char first)")
target_start
logged "they go by blocking ioctls"
echo 0 >/proc/sys/kernel/io_uring_disabled # for fio
host_connect
fio_verify threads --iodepth=8 --bs=64k --size=2M
host_disconnect; target_stop

say "without root, and so without the right to query the drive's health"
chmod 666 "$(char first)" "$(block first)" /run/notify
chown -R 65534 /run/state
cat >/run/nobody <<EOT
#!/bin/bash
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$TARGET_BIN" "\$@"
EOT
chmod 755 /run/nobody
TARGET_BIN=/run/nobody target_start; host_connect
fio_verify nobody --iodepth=8 --bs=64k --size=2M
logged "the health of a drive cannot be read"
host_disconnect; target_stop

say "a drive that is removed and comes back"
pci=$(readlink -f "/sys/class/nvme/$(controller first)/device")
ln -sfn "$(char first)" /run/by-id # like the links of udev: the drive may get another name
NAMESPACES=("1:nvme::/run/by-id" "2:nvme::$(char second)")
target_start; host_connect
DEV=$(namespace_device 1)
head -c 1M /tmp/random | dd of="$DEV" bs=1M oflag=direct conv=fsync status=none
echo 1 >"$pci/remove"
wait_for 20 log_has "a disk is offline"
fio_on 2 other --iodepth=8 --bs=64k --size=1M
echo 1 >/sys/bus/pci/rescan
wait_for 60 present first; ln -sfn "$(char first)" /run/by-id
wait_for 60 log_has "a disk is back"
cmp <(head -c 1M /tmp/random) \
  <(dd if="$(namespace_device 1)" bs=1M count=1 iflag=direct status=none) ||
  fail "other data than before"
fio_on 1 back --iodepth=8 --bs=64k --size=1M
host_disconnect; target_stop
mount "$(block second)" /tmp/mounted 2>/dev/null && umount /tmp/mounted # unused again
klog_check "Can't open blockdev" # the refused mount
