#!/bin/bash
# install.sh [demo]: installs the packages of the lab (Debian 12) with apt, as root or through sudo;
# with "demo" only the packages that make demo needs under QEMU. Does nothing if all are installed.
set -eu
# shellcheck source=scripts/apt.sh
. "$(dirname "$(readlink -f "$0")")/../../scripts/apt.sh"
qemu="e2fsprogs debian-archive-keyring mmdebstrap qemu-system-x86 fakeroot uidmap"
packages="$qemu
  bc bison flex gcc libc6-dev libelf-dev make patch xz-utils
  curl ca-certificates
  libibverbs-dev librdmacm-dev libssl-dev
  nvme-cli fio rdma-core ibverbs-utils ibverbs-providers perftest rdmacm-utils
  ethtool iproute2 iputils-ping nftables tcpdump tshark socat jq python3
  xfsprogs util-linux mount procps psmisc
"
case ${1:-} in
  '') ;;
  demo) packages=$qemu ;;
  *) echo "usage: install.sh [demo]" >&2; exit 1 ;;
esac
# shellcheck disable=SC2086  # a list of names
apt_install $packages
