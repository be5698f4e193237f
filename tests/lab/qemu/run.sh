#!/bin/bash
# run.sh SCENARIO [VARIANT] [NAME=VALUE...]: like ../run.sh, for the scenarios of this directory, on
# Debian's unmodified kernel under QEMU without acceleration: ten to twenty times slower than a real
# machine. More lines of the head:
#   # nvmet: REASON           why the kernel's target cannot run it, for lab_test.go
#   # init: systemd           the first process is systemd
#   # drives: yes             an NVMe, a SATA and a SCSI drive, which read as zeroes
#   # nvme: yes               NVMe drives that keep written data
#   # virtio: 256M            a virtio disk of this size that keeps written data
#   # packages: yes           old.deb and new.deb in /run/out/packages, see packages.sh
#   # numa: yes               two NUMA nodes, with a CPU and half of the memory each
set -eu
. "$(dirname "$(readlink -f "$0")")/../common.sh"
need qemu-system-x86_64
[ $# -ge 1 ] || die "usage: run.sh SCENARIO [VARIANT] [NAME=VALUE...]"
name=${1%.sh}; shift
script=$lab/qemu/scenarios/$name.sh
[ -e "$script" ] || die "no scenario $script"
head_value() { sed -n "s/^# $1: *//p" "$script" | head -n1; }
variant=$(head_value variants); variant=${variant%% *}
if [ $# -gt 0 ] && [[ $1 != *=* ]]; then variant=$1; shift; fi
cpus=$(head_value cpus) limit=$(head_value limit) limit=${limit:-300}
image=$("$lab/qemu/build-image.sh")
out=${NVMF_LAB_OUT:-}
tmp=''
if [ -z "$out" ]; then out=$(mktemp -d); tmp=$out; fi
trap 'rm -f "$out"/*.img "$out/go.test"; [ -z "$tmp" ] || rm -rf "$tmp"' EXIT
mkdir -p "$out"; out=$(readlink -f "$out"); rm -f "$out/rc"
cp -r "$lab/../../packaging" "$out/"
# APPARMOR=1: the profile in the form of the kernel, with the additions for the keys of the
# scenario.
if [ -n "${APPARMOR:-}" ]; then
  mkdir -p "$out/apparmor/local"
  echo '/{usr/,}bin/{sh,dash,sed,cat} mrix,' >"$out/apparmor/local/nvmf-target"
  apparmor_parser --skip-kernel-load --skip-cache --stdout --Include "$out/apparmor" \
    --kernel-features=/etc/apparmor.d/abi/3.0 "$out/packaging/apparmor/nvmf-target" \
    >"$out/apparmor/policy"
fi
[ -z "$(head_value packages)" ] || "$lab/qemu/packages.sh" "$out/packages"
case $(head_value init) in
  systemd)
    init="/lib/systemd/systemd systemd.wants=lab.service"
    init+=" systemd.mask=serial-getty@ttyS0.service" ;;
  *) init=/sbin/lab-init ;;
esac

devices=()
blockdev() { devices+=(-blockdev "$1"); }
device() { local d; for d; do devices+=(-device "$d"); done; }
if [ -n "$(head_value drives)" ]; then
  for d in nvme sata scsi; do
    blockdev "driver=null-co,node-name=$d,size=1073741824,read-zeroes=on"
  done
  device nvme,drive=nvme,serial=lab-nvme
  device ahci,id=ahci ide-hd,drive=sata,bus=ahci.0,serial=lab-sata
  device virtio-scsi-pci,id=scsi scsi-hd,drive=scsi,bus=scsi.0,serial=lab-scsi
fi
# nvme_drive NAME SIZE CONTROLLER-OPTIONS NAMESPACE-OPTIONS: space freed in the drive is freed in
# its file.
nvme_drive() {
  truncate -s "$2" "$out/$1.img"
  local file="file.driver=file,file.filename=$out/$1.img"
  blockdev "driver=raw,node-name=$1,discard=unmap,detect-zeroes=off,$file"
  device "nvme,id=$1,serial=lab-$1$3" "nvme-ns,bus=$1,drive=$1,nsid=1$4"
}
if [ -n "$(head_value nvme)" ]; then
  nvme_drive first 256M "" ""
  nvme_drive second 64M ,mdts=3 ,logical_block_size=4096,physical_block_size=4096
  nvme_drive suite 16M ,mdts=4 ""
  nvme_drive meta 16M "" ,ms=8
fi
if [ -n "$(head_value virtio)" ]; then
  truncate -s "$(head_value virtio)" "$out/virtio.img"
  devices+=(-drive "file=$out/virtio.img,if=virtio,format=raw,discard=unmap")
fi
if [ -n "$(head_value numa)" ]; then
  for n in 0 1; do
    devices+=(-object "memory-backend-ram,size=1G,id=memory$n"
      -numa "node,nodeid=$n,cpus=$n,memdev=memory$n")
  done
fi
package=$(head_value go-test)
if [ -n "$package" ]; then
  need go
  (cd "$lab/../.." && CGO_ENABLED=0 go test -c -o "$out/go.test" "$package")
  set -- "$@" TEST_BIN=/run/out/go.test
fi
settings=()
for s; do
  case $s in
    TARGET_BIN=*) cp "${s#*=}" "$out/nvmf-target"; s=TARGET_BIN=/run/out/nvmf-target ;;
  esac
  settings+=("$s")
done
append="root=/dev/vda rw console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check mitigations=off"
append+=" init=$init LAB_VM=qemu LAB_DIR=/lab LAB_LIMIT=$limit"
append+=" LAB_SCRIPT=/lab/qemu/scenarios/$name.sh TRANSPORT=$variant ${settings[*]}"
boot() {
  timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "${cpus:-2}" \
    -m 2G -nographic -no-reboot -nic none \
    -kernel "$image/vmlinuz" -initrd "$image/initrd" -append "$append" \
    -drive "file=$image/image,if=virtio,format=raw,snapshot=on" "${devices[@]}" \
    -virtfs "local,path=$lab,mount_tag=lab,security_model=none,readonly=on" \
    -virtfs "local,path=$out,mount_tag=out,security_model=none" </dev/null
}
# Emulation of two CPUs sometimes executes code that the kernel is patching, which crashes it during
# boot, before anything was tested.
for _ in 1 2 3; do
  rm -f "$out/began"
  boot && rc=0 || rc=$?
  [ ! -e "$out/began" ] && [ $rc != 124 ] && [ $rc != 137 ] || break
  echo "run.sh: the kernel ended before the scenario began"
done
if [ "$(cat "$out/rc" 2>/dev/null)" != 0 ]; then
  qemu-system-x86_64 --version | sed -n '1s/^/lab: versions: /p'
fi
if [ -e "$out/rc" ]; then exit "$(cat "$out/rc")"; fi
case $rc in 124 | 137) echo "run.sh: stopped after $limit seconds"; exit 124 ;; *) exit 125 ;; esac
