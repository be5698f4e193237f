#!/bin/bash
# build-image.sh: makes the disk of a Debian 12 with its own, unmodified 6.12 kernel and the lab's
# tools, and prints its directory, which has the files image, vmlinuz and initrd. It is cached
# outside the tree and made again only if this script changes.
set -eu
self=$(readlink -f "$0")
. "$(dirname "$self")/../common.sh"
packages=linux-image-6.12-amd64,kmod,iproute2,iputils-ping,procps,util-linux,systemd,udev,jq,lz4
packages+=,nvme-cli,fio,rdma-core,ibverbs-utils,rdmacm-utils,ibverbs-providers,librdmacm1,perftest
packages+=,socat,e2fsprogs,xfsprogs,nftables,tcpdump,smartmontools,sg3-utils,apparmor
dir=$cache/debian-$(digest "$self" --)
steps=1690 # lines that mmdebstrap prints

make_image() {
  local work mirror security as_root='' sources
  need mmdebstrap mke2fs
  if [ "$(id -u)" != 0 ]; then need sudo; as_root=sudo; fi
  mirror=$(mirror_of '/debian/?$' http://deb.debian.org/debian)
  security=$(mirror_of 'security' http://deb.debian.org/debian-security)
  sources=("deb $mirror bookworm main" "deb $mirror bookworm-updates main"
    "deb $security bookworm-security main")
  work=$(mktemp -d -p "$cache" image.XXXXXX); chmod 755 "$work"
  trap '$as_root rm -rf "$work"' EXIT
  cat >"$work/init" <<'INIT'
#!/bin/bash
# Starts init.sh of the lab from the shared directory: as the first process, or as a service of
# systemd, which does not pass on the settings of the kernel's command line.
[ $$ != 1 ] || mount -t proc proc /proc
for s in $(cat /proc/cmdline); do case $s in [A-Z]*=*) export "$s" ;; esac; done
modprobe -a 9p 9pnet_virtio
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro lab /lab &&
  exec /lab/init.sh
INIT
  printf '%s\n' '[Service]' Type=oneshot ExecStart=/sbin/lab-init StandardOutput=tty \
    TTYPath=/dev/ttyS0 >"$work/service"
  # A small initrd: reading a large one is slow without acceleration.
  printf 'MODULES=list\nCOMPRESS=lz4\n' >"$work/conf"
  printf '%s\n' virtio_pci virtio_blk ext4 >"$work/modules"
  cat >"$work/before" <<HOOK
#!/bin/sh
mkdir -p "\$1/etc/initramfs-tools/conf.d" "\$1/lab" "\$1/out"
cp '$work/conf' "\$1/etc/initramfs-tools/conf.d/lab"
cp '$work/modules' "\$1/etc/initramfs-tools/modules"
HOOK
  cat >"$work/after" <<HOOK
#!/bin/sh
install -m 755 '$work/init' "\$1/sbin/lab-init"
install -m 644 '$work/service' "\$1/etc/systemd/system/lab.service"
cp "\$1"/boot/vmlinuz-* '$work/vmlinuz'
cp "\$1"/boot/initrd.img-* '$work/initrd'
rm -rf "\$1"/boot/* "\$1"/var/cache/apt/* "\$1"/var/lib/apt/lists/*
HOOK
  chmod 755 "$work/before" "$work/after"
  echo "making the Debian 12 image: once, a minute or two" >&2
  $as_root mmdebstrap --verbose --variant=minbase --format=directory --include="$packages" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
    --dpkgopt='path-exclude=/usr/share/{doc,man,locale}/*' \
    --essential-hook="$work/before" --customize-hook="$work/after" \
    bookworm "$work/root" "${sources[@]}" 2>&1 | tee "$work/log" |
    progress "making the Debian 12 image" $steps
  [ "${PIPESTATUS[0]}" = 0 ] || { tail -n 40 "$work/log" >&2; die "the image cannot be made"; }
  $as_root mke2fs -q -F -t ext4 -O ^has_journal -d "$work/root" "$work/image" 3G >/dev/null
  $as_root rm -rf "$work/root"
  $as_root chown -R "$(id -u)" "$work"
  trap - EXIT
  mv -T "$work" "$dir"
}

exec 9>"$cache/build-image.lock"; flock 9
[ -e "$dir/image" ] || make_image
echo "$dir"
