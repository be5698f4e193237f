#!/bin/bash
# install.sh [demo]: installs the packages of the lab (Debian 12) with apt, as root or through sudo;
# with "demo" only those that make demo needs under QEMU. Does nothing if all are installed.
set -eu
qemu="e2fsprogs debian-archive-keyring mmdebstrap qemu-system-x86 fakeroot uidmap"
packages="$qemu
  bc bison flex gcc libc6-dev libelf-dev make patch xz-utils
  curl ca-certificates
  libibverbs-dev librdmacm-dev libssl-dev
  nvme-cli fio rdma-core ibverbs-utils ibverbs-providers perftest
  iproute2 iputils-ping nftables tcpdump tshark socat jq python3
  xfsprogs util-linux mount procps psmisc
"
case ${1:-} in
  '') ;;
  demo) packages=$qemu ;;
  *) echo "usage: install.sh [demo]" >&2; exit 1 ;;
esac
missing=
for p in $packages; do
  case $(dpkg-query -W -f '${Status}' "$p" 2>/dev/null) in
    *" installed") ;;
    *) missing="$missing $p" ;;
  esac
done
[ -n "$missing" ] || exit 0
as_root=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null ||
    { echo "install.sh: missing:$missing. Run it as root, or install sudo" >&2; exit 1; }
  as_root=sudo
fi
# The question of tshark, whether other users may capture, gets its default answer: no.
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}
echo "installing:$missing" >&2
# shellcheck disable=SC2086  # a list of names
apt install -y --no-install-recommends $missing >/dev/null 2>&1 || {
  apt update
  apt install -y --no-install-recommends $missing >/dev/null
}
