# nvmf-target disks queries the kernel's drivers: an NVMe, a SATA and two SCSI drives, as root and
# as another user, and the disk below a namespace. Hosts read the same health as smartctl and
# sg_logs, also of a drive that predicts its failure. A SCSI drive is pulled out and comes back
# under another name: the namespace identifies it by its serial number.
# variants: tcp
# covers: internal/inventory backend/disk internal/cli
# nvmet: which lists no disks
# drives: yes
# cpus: 2
# limit: 500
. "$LAB_DIR/lib.sh"
need smartctl sg_logs sg_wr_mode setpriv
modprobe -a nvme ahci sd_mod virtio_scsi
modprobe scsi_debug dev_size_mb=64 # a SAS drive in memory
# scsi NAME: prints the disk with this model or serial number; the kernel's numbers vary.
scsi() {
  local d
  for d in /sys/block/sd*; do
    if grep -qsaF -- "$1" "$d/device/model" "$d/device/vpd_pg80"; then echo "/dev/${d##*/}"; fi
  done
}
present() { [ -b "$(scsi "$1")" ]; }
wait_for 60 test -b /dev/nvme0n1
for d in lab-sata lab-scsi scsi_debug; do wait_for 60 present $d; done
sata=$(scsi lab-sata) virtual=$(scsi lab-scsi) sas=$(scsi scsi_debug)
disks() { "$TARGET_BIN" disks "$@" | tee /tmp/disks; }
# row WORDS...: the table has a line with all of them.
row() {
  local w lines; lines=$(cat /tmp/disks)
  for w; do lines=$(grep -F -- "$w" <<<"$lines") || fail "no line with: $*"; done
}
# The output of other tools, in degrees and hours.
sata_says() { smartctl -A "$sata" | awk -v id="$1" '$1 == id {print $10}'; }
sas_degrees() { sg_logs -p 0xd "$sas" | sed -n 's/^ *Current temperature = \([0-9]*\).*/\1/p'; }

say "free drives"
disks
row nvme0n1 'QEMU NVMe Ctrl' lab-nvme good yes
row "${sata#/dev/}" sata 'QEMU HARDDISK' lab-sata good "$(sata_says 190) °C" "$(sata_says 9) h" \
  yes
row "${virtual#/dev/}" scsi 'QEMU HARDDISK' lab-scsi 'not reported' yes
row "${sas#/dev/}" scsi 'scsi_debug' good "$(sas_degrees) °C" yes
say "without root"
setpriv --reuid=65534 --regid=65534 --clear-groups "$TARGET_BIN" disks | tee /tmp/disks
for d in nvme0n1 "${sata#/dev/}" "${virtual#/dev/}" "${sas#/dev/}"; do
  row "$d" 'only root may ask'
done

say "in use"
truncate -s 1M /var/tmp/disk.img
ln -sfn "$sas" /run/by-id # like the links of udev: the drive will get another name
NAMESPACES=(1:file::/var/tmp/disk.img "2:block::$sata" 3:block::/run/by-id "4:block::$virtual")
lab_up; target_start
disks --config /run/target.yaml
row vda 'in use' "namespace 1 of $NQN" '/'
row "${sata#/dev/}" 'in use' "namespace 2 of $NQN"
row "${sas#/dev/}" 'in use' "namespace 3 of $NQN"

say "hosts read the drives' health"
host_connect
health() { nvme smart-log "/dev/$CTRL" -n "$1" -o json | jq -r ".$2"; } # NSID FIELD
# same NSID FIELD VALUE
same() {
  local got; got=$(health "$1" "$2")
  [ "$got" = "$3" ] || fail "namespace $1: $2 is $got, not $3"
  say "namespace $1: $2 is $3"
}
same 2 temperature $(($(sata_says 190) + 273))
same 2 power_on_hours "$(sata_says 9)"
same 2 critical_warning 0
same 3 temperature $(($(sas_degrees) + 273))
same 3 critical_warning 0
same 4 temperature 0
same 4 critical_warning 0
unknown_health() { grep "the health of a drive cannot be read" /run/target.log | grep lab-scsi; }
wait_for 10 unknown_health
say "how much of a sparse file has space"
used() { # thin provisioning, blocks of 512 bytes
  nvme id-ns "/dev/$CTRL" -n 1 -o json | jq -r '"\(.nsfeat % 2) \(.nuse)"'
}
[ "$(used)" = "1 0" ] || fail "a file without content: $(used)"
dd if=/dev/zero of="$(namespace_device 1)" bs=64k count=1 seek=2 oflag=direct status=none
[ "$(used)" = "1 128" ] || fail "a file with 64 KiB: $(used)"

say "a drive that predicts its failure"
exceptions() {
  local page="1c,0a,$1,00,00,00,00,00,00,00,00,00"
  sg_wr_mode -p 0x1c -c "$page" "$sas" || sg_wr_mode -p 0x1c -c "$page" "$sas" || fail "sg_wr_mode"
}
exceptions 0c # with TEST; the next command is answered with it first
sleep 1.2 # the target queries at most once a second
same 3 critical_warning 4
same 2 critical_warning 0
disks; row "${sas#/dev/}" 'failing: predicts its failure (5D/FFh)'
exceptions 08
sleep 1.2
same 3 critical_warning 0

say "a drive that is removed and comes back"
DEV=$(namespace_device 3)
head -c 1M /dev/urandom >/tmp/random
dd if=/tmp/random of="$DEV" bs=64k oflag=direct conv=fsync status=none
host=$(readlink -f "/sys/block/${sas#/dev/}/device" | sed 's,.*/host\([0-9]*\)/.*,\1,')
echo 1 >"/sys/block/${sas#/dev/}/device/delete"
wait_for 20 log_has "a disk is offline"
dd if="$(namespace_device 2)" of=/dev/null bs=64k count=16 iflag=direct status=none ||
  fail "another drive is affected"
echo "- - -" >"/sys/class/scsi_host/host$host/scan"
wait_for 60 present scsi_debug; sas=$(scsi scsi_debug)
ln -sfn /dev/nvme0n1 /run/by-id
wait_for 20 log_has "another disk is in its place"
ln -sfn "$sas" /run/by-id
wait_for 60 log_has "a disk is back"
say "it is back as $sas"
DEV=$(namespace_device 3)
cmp /tmp/random <(dd if="$DEV" bs=64k count=16 iflag=direct status=none) ||
  fail "other data than before"
fio_verify back --iodepth=8 --bs=64k --size=1M
sleep 1.2
same 3 temperature $(($(sas_degrees) + 273))
host_disconnect; target_stop
