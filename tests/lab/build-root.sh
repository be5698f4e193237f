#!/bin/bash
# build-root.sh PACKAGE...: makes a root directory of Debian 13 with these packages, for programs
# that Debian 12 does not have, and prints its path. It is cached outside the tree.
set -eu
self=$(readlink -f "$0")
. "$(dirname "$self")/common.sh"
dir=$cache/root-$(digest "$self" -- "$@")

make_root() {
  local work mirror as_root='' packages
  need mmdebstrap
  if [ "$(id -u)" != 0 ]; then need sudo; as_root=sudo; fi
  mirror=$(mirror_of '/debian/?$' http://deb.debian.org/debian)
  packages=$(IFS=,; echo "$*")
  work=$(mktemp -d -p "$cache" root.XXXXXX)
  trap '$as_root rm -rf "$work"' EXIT
  echo "making a root directory of Debian 13: once, a minute or two" >&2
  $as_root mmdebstrap --variant=minbase --include="$packages" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
    --dpkgopt='path-exclude=/usr/share/{doc,man,locale}/*' trixie "$work/root" \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
    >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; die "the directory cannot be made"; }
  mv -T "$work/root" "$dir"
  trap - EXIT
  rm -rf "$work"
}

exec 9>"$cache/build-root.lock"; flock 9
[ -d "$dir" ] || make_root "$@"
echo "$dir"
