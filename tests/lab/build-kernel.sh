#!/bin/bash
# build-kernel.sh [7.3|6.12|--cached]: builds the user-mode kernel from Debian's linux-source
# package and prints its path. 7.3 comes from trixie-backports, 6.12 from this machine's own sources
# or from trixie. Without an argument 7.3 is built, or 6.12 if 7.3 is no longer offered. The kernel
# is cached outside the tree and built again only if its configuration or patch changes. --cached
# builds nothing and fails if there is no kernel.
set -eu
self=$(readlink -f "$0")
. "$(dirname "$self")/common.sh"
not_offered=3

kernel_path() { # VERSION
  local inputs=("$lab/kernel/uml-$1."*)
  echo "$cache/linux-$1-$(digest "${inputs[@]}" -- "$1" "$(uname -m)")"
}

# cached: prints the path of the kernel that was built.
cached() {
  local version
  for version in 7.3 6.12; do
    if [ -x "$(kernel_path $version)" ]; then kernel_path $version; return; fi
  done
  return 1
}

fetch() { # VERSION: linux-source-VERSION*.deb into the current directory
  if [ "$1" = 6.12 ] && apt-get download -qq linux-source-6.12 2>/dev/null; then return; fi
  case $1 in
    7.3) private_apt trixie-backports "$PWD/apt" ;;
    *) private_apt trixie "$PWD/apt" ;;
  esac
  apt-cache "${APT[@]}" show "linux-source-$1" >/dev/null 2>&1 || exit $not_offered
  apt-get "${APT[@]}" download "linux-source-$1"
}

build() { # VERSION
  local version=$1 out steps=2180 # lines that make prints
  out=$(kernel_path "$version")
  need flex bison bc make gcc patch xz dpkg-deb
  rm -rf "$cache"/build.?????? # of an interrupted build
  work=$(mktemp -d -p "$cache" build.XXXXXX); trap 'rm -rf "$work"' EXIT; cd "$work"
  echo "building the user-mode kernel $version: once, 4 minutes on two idle CPUs" >&2
  fetch "$version"
  dpkg-deb -x linux-source-*.deb .
  tar xJf "usr/src/linux-source-$version.tar.xz"
  cd "linux-source-$version"; mkdir "$work/b"
  cp "$lab/kernel/uml-$version."*config "$work/b/.config"
  if [ -e "$lab/kernel/uml-$version.patch" ]; then patch -sp1 <"$lab/kernel/uml-$version.patch"; fi
  sed -i '/^config HZ$/,/default/s/default 100$/default 1000/' arch/um/Kconfig
  make -s ARCH=um O="$work/b" olddefconfig >"$work/log" 2>&1
  nice make ARCH=um O="$work/b" -j"$(nproc)" linux 2>&1 | tee -a "$work/log" |
    progress "building the user-mode kernel $version" $steps
  [ "${PIPESTATUS[0]}" = 0 ] || { tail -n 40 "$work/log" >&2; die "the kernel does not build"; }
  strip -o "$work/linux" "$work/b/linux"
  cp "$work/b/.config" "$out.config"
  mv "$work/linux" "$out"
}

case ${1:-} in
  7.3 | 6.12)
    exec 9>"$cache/build-kernel.lock"; flock 9
    [ -x "$(kernel_path "$1")" ] || build "$1"
    kernel_path "$1" ;;
  --cached) cached ;;
  "")
    cached && exit
    "$self" 7.3 && exit || rc=$?
    [ $rc = $not_offered ] || exit $rc
    echo "linux-source-7.3 is no longer offered: 6.12 is used instead" >&2
    exec "$self" 6.12 ;;
  *) die "usage: build-kernel.sh [7.3|6.12|--cached]" ;;
esac
