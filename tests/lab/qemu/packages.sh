#!/bin/bash
# packages.sh DIR: makes new.deb, the package of this tree, and old.deb, which has the version 0.0.1
# and another configuration. The program in each says its version.
set -euo pipefail
tree=$(readlink -f "$(dirname "$(readlink -f "$0")")/../../..")
out=$(readlink -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/tree"
# A copy: bin/package of the tree stays as it is, and nothing depends on git.
tar -c -C "$tree" --exclude=./bin --exclude=./.git . | tar -x -C "$work/tree"
SOURCE_DATE_EPOCH=0 GIT_DIR=/dev/null "$work/tree/scripts/package.sh" >/dev/null
cp "$work"/tree/bin/package/nvmf-target_*.deb "$out/new.deb"
dpkg-deb -R "$out/new.deb" "$work/old"
sed -i 's/^Version: .*/Version: 0.0.1/' "$work/old/DEBIAN/control"
sed -i 's/64MiB/32MiB/' "$work/old/etc/nvmf-target/nvmf-target.yaml"
CGO_ENABLED=1 "$work/tree/scripts/build.sh" "$work/old/usr/bin" 0.0.1
dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/old" "$out/old.deb" >/dev/null
