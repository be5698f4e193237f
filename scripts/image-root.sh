#!/bin/bash
# image-root.sh DIR: makes in DIR the root file system of the image without the program: glibc,
# OpenSSL and rdma-core with its providers from the packages of Debian 12 and its security updates,
# and nothing else, so no shell and no package manager. Run by root, the files belong to root. The
# Containerfile and scripts/package-test.sh call it.
set -euo pipefail
root=$(readlink -f "$1")
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
packages=(libc6 libssl3 libibverbs1 librdmacm1 ibverbs-providers libnl-3-200 libnl-route-3-200)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(
  . tests/lab/common.sh
  private_apt "bookworm bookworm-security" "$work/apt"
  mkdir "$work/debs" && cd "$work/debs"
  apt-get "${APT[@]}" download "${packages[@]}"
)
umask 022
mkdir -p "$root"/usr/{bin,lib,lib64} "$root"/{etc/nvmf-target,var/lib/nvmf-target,run/nvmf-target} \
  "$root"/{dev,proc,sys} "$root/var/lib/dpkg/status.d"
mkdir -m 1777 "$root/tmp"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
for deb in "$work"/debs/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" |
    tar -x --keep-directory-symlink -C "$root" --exclude='./usr/share/lintian*' \
      --exclude='./usr/lib/*/gconv*' --exclude='./usr/share/man*'
  # Where scanners look for the packages of an image without dpkg.
  dpkg-deb -f "$deb" >"$root/var/lib/dpkg/status.d/$(dpkg-deb -f "$deb" Package)"
done
echo 'nvmf-target:x:65532:65532::/var/lib/nvmf-target:/sbin/nologin' >"$root/etc/passwd"
echo 'nvmf-target:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
[ "$(id -u)" != 0 ] || chown 65532:65532 "$root"/{var/lib,run}/nvmf-target
