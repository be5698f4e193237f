# nvmf-target disks asks the kernel's drivers: an NVMe and a SATA drive, as root and not, and the disk that a namespace lies on.
# variants: tcp
# drives: yes
# cpus: 2
# limit: 240
. "$LAB_DIR/lib.sh"
modprobe -a nvme ahci sd_mod
for d in nvme0n1 sda; do wait_for 60 test -b /dev/$d; done
disks() { "$TARGET_BIN" disks "$@" | tee /tmp/disks; }
# row WORDS...: the table has a line with all of them.
row() { local w lines; lines=$(cat /tmp/disks); for w; do lines=$(grep -F -- "$w" <<<"$lines") || fail "no line with: $*"; done; }
say "free drives"
disks
row nvme0n1 'QEMU NVMe Ctrl' lab-nvme good yes
row sata 'QEMU HARDDISK' lab-sata good yes
say "without root"
setpriv --reuid=65534 --regid=65534 --clear-groups "$TARGET_BIN" disks | tee /tmp/disks
row nvme0n1 'only root may ask'; row sata 'only root may ask'
say "in use"
mkdir -p /tmp/config
cat >/tmp/config/target.yaml <<EOT
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - {nqn: "$NQN", allow_any_host: true, namespaces: [{nsid: 7, backend: file, path: /var/tmp/disk.img, size: 1MiB}]}
EOT
truncate -s 1M /var/tmp/disk.img
disks --config /tmp/config/target.yaml
row vda 'in use' "namespace 7 of $NQN" '/'
