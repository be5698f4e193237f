#!/bin/bash
# deps.sh [build|package|unit|demo|cluster|test]: installs the dependencies for building, making
# packages, testing without the lab, the demo, gateways with Ceph, or everything else, on Debian 12
# or 13: packages with apt, as root or through sudo, and a Go into ~/.cache/nvmf-target if the
# machine has none. Does nothing if all are installed.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

# Only the go command of Debian's package is used: it fetches the toolchain that go.mod names.
fetch_go() {
  local dir=$cache/go.new package
  echo "fetching Go into $cache/go" >&2
  rm -rf "$dir"; mkdir -p "$dir"
  (
    . tests/lab/common.sh
    suites="$(. /etc/os-release && echo "$VERSION_CODENAME")-backports trixie"
    private_apt "$suites" "$dir/apt"
    package=$(apt-cache "${APT[@]}" pkgnames golang-1. | grep -E '^golang-1\.[0-9]+-go$' |
      sort -V | tail -n1)
    cd "$dir"
    apt-get "${APT[@]}" download "$package"
    dpkg-deb -x golang-*.deb .
    rm -rf apt golang-*.deb
  )
  # shellcheck disable=SC2031  # the subshell above works on a copy
  rm -rf "$cache/go" && mv "$dir" "$cache/go"
}

# shellcheck disable=SC2031  # fetch_go changes it in a subshell
# promtool, which tests the alerts, has its own package since Debian 13. In Debian 12 it is part of
# prometheus; the server is not installed.
fetch_promtool() {
  local dir=$cache/promtool.new package
  ! command -v promtool >/dev/null && [ ! -x "$cache/promtool" ] || return 0
  echo "fetching promtool into $cache" >&2
  rm -rf "$dir"; mkdir -p "$dir"
  (
    . tests/lab/common.sh
    private_apt "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$dir/apt"
    cd "$dir"
    package=$(apt-cache "${APT[@]}" pkgnames promtool)
    apt-get "${APT[@]}" download "${package:-prometheus}"
    dpkg-deb -x prom*_*.deb .
  )
  # shellcheck disable=SC2031
  mv "$dir/usr/bin/promtool" "$cache/promtool" && rm -rf "$dir"
}

apt_install bash ca-certificates curl gcc git libc6-dev make pkg-config libibverbs-dev \
  librdmacm-dev libssl-dev
case ${1:-build} in
  build) ;;
  package) apt_install apparmor dpkg-dev jq mmdebstrap rpm runc ;;
  unit) apt_install apparmor dpkg-dev jq openssl rpm shellcheck; fetch_promtool ;;
  demo) tests/lab/install.sh demo ;;
  cluster) apt_install ceph-common ceph-mon ceph-osd librbd1; tests/lab/install.sh ;;
  test)
    apt_install apparmor chromium-headless-shell dpkg-dev openssl rpm shellcheck tshark
    fetch_promtool; tests/lab/install.sh ;;
  *) die "usage: deps.sh [build|package|unit|demo|cluster|test]" ;;
esac
# shellcheck disable=SC2031
find_go || { fetch_go; find_go || die "the Go fetched into $cache/go does not run"; }
go version >/dev/null ||
  die "Go cannot fetch the toolchain that go.mod names: see the message above"
