#!/bin/bash
# package.sh: builds the packages for targets and hosts, .deb and .rpm, and the SBOM of the target
# into bin/package. The same commit gives the same bytes in any directory. The version is the one in
# the first heading of CHANGELOG.md, or of a snapshot before it unless HEAD has its tag.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
out=bin/package stage=bin/package/stage

git() { command git -c safe.directory="$PWD" "$@"; } # git refuses another user's tree
release=$(sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -n1)
[ -n "$release" ] || die "CHANGELOG.md has no heading with a version, such as \"## 0.1.0\""
version=$release
if commit=$(git rev-parse --short=12 HEAD 2>/dev/null); then
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
  dirty=$(git status --porcelain | head -n1)
  if [ -n "$dirty" ] || [ "$(git tag --points-at HEAD --list "v$release")" = "" ]; then
    version=$release~$(date -u -d "@$(git log -1 --format=%ct)" +%Y%m%d%H%M%S).$commit${dirty:+.dirty}
  fi
fi
[ -n "${SOURCE_DATE_EPOCH:-}" ] || die "SOURCE_DATE_EPOCH is not set, and this is not a git tree"
export SOURCE_DATE_EPOCH VERSION=$version
ARCH=$(go env GOARCH)
export ARCH

rm -rf $out
mkdir -p $stage
umask 022
CGO_ENABLED=1 scripts/build.sh $stage "$version"
target=$stage/nvmf-target
$target schema >$stage/schema.json
$target man $stage/man
gzip -9n $stage/man/*
for shell in bash fish zsh; do $target completion $shell >$stage/completion.$shell; done
go version -m -json $target | jq --arg version "$version" -f scripts/sbom.jq >$stage/sbom.json

# The documents without decisions and measurements. Links to files that are not shipped lead to the
# source.
mkdir -p $stage/doc/fio
cp docs/fio/* $stage/doc/fio/
cp docs/*.png docs/*.svg $stage/doc/
source=$(sed -n 's/^homepage: //p' packaging/nfpm.yaml)/blob/main
for page in docs/*.md; do
  sed -E -e 's#\]\(\.\./CHANGELOG\.md#](CHANGELOG.md#g' -e "s#\]\(\.\./#]($source/#g" \
    -e "s#\]\((adr|experiments|benchmarks)([/)])#]($source/docs/\1\2#g" "$page" \
    >"$stage/doc/${page##*/}"
done
sed 's#](docs/#](#g' CHANGELOG.md >$stage/doc/CHANGELOG.md

for package in nfpm nfpm-host; do
  for format in deb rpm; do
    go tool -modfile=.ci/tools/nfpm.mod nfpm package --config packaging/$package.yaml \
      --packager $format --target $out/
  done
done
mv $stage/sbom.json "$out/nvmf-target_$version.cdx.json"
rm -rf $stage
