#!/bin/bash
# install.sh: installs with apt what the lab needs (Debian 12). As root or through sudo. Does nothing when all is there.
set -eu
packages="
  bc bison flex gcc libc6-dev libelf-dev make patch xz-utils
  curl ca-certificates debian-archive-keyring
  libibverbs-dev librdmacm-dev
  nvme-cli fio rdma-core ibverbs-utils ibverbs-providers perftest
  iproute2 iputils-ping nftables tcpdump tshark socat jq
  e2fsprogs xfsprogs util-linux mount procps psmisc
  mmdebstrap qemu-system-x86 fakeroot uidmap
"
missing=
for p in $packages; do
  case $(dpkg-query -W -f '${Status}' "$p" 2>/dev/null) in *" installed") ;; *) missing="$missing $p" ;; esac
done
[ -n "$missing" ] || exit 0
as_root=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "install.sh: missing:$missing. Run it as root, or install sudo" >&2; exit 1; }
  as_root=sudo
fi
# tshark asks whether other users may capture; the default answer, no, is the one wanted.
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }
echo "installing:$missing" >&2
# shellcheck disable=SC2086  # a list of names
apt install -y --no-install-recommends $missing >/dev/null 2>&1 || {
  apt update
  apt install -y --no-install-recommends $missing >/dev/null
}
