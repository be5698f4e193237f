#!/bin/bash
# unpack.sh PACKAGE...: unpacks packages of Debian testing, without their dependencies, into a
# directory and prints its path. It is for programs that no stable Debian has and that run with the
# programs of the machine, such as programs in Python. The directory is cached outside the tree.
set -eu
self=$(readlink -f "$0")
. "$(dirname "$self")/common.sh"
dir=$cache/unpacked-$(digest "$self" -- "$@")

unpack() {
  local work package
  need dpkg-deb
  work=$(mktemp -d -p "$cache" unpacked.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  echo "fetching $*" >&2
  private_apt testing "$work/apt"
  (cd "$work" && apt-get "${APT[@]}" download "$@" >&2)
  mkdir "$work/root"
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  mv -T "$work/root" "$dir"
  trap - EXIT
  rm -rf "$work"
}

exec 9>"$cache/unpack.lock"; flock 9
[ -d "$dir" ] || unpack "$@"
echo "$dir"
