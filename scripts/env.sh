# shellcheck shell=bash
# Sourced by the other scripts: changes to the top of the tree and puts a Go that can build this
# module first in PATH. A Go that is older than go.mod requires, but at least 1.21, fetches the
# right one by itself (GOTOOLCHAIN, through the Go module proxy).
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit
# The version comes from scripts/build.sh; git may refuse to describe another user's tree.
# Without the path of the tree the build cache serves every checkout.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nvmf-target

die() { echo "$(basename "$0"): $*" >&2; exit 1; }
# at_least VERSION LIMIT
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }

find_go() {
  local need go version
  need=$(awk '$1 == "go" {print $2}' go.mod)
  for go in "$(command -v go)" /usr/local/go/bin/go /usr/lib/go-1.*/bin/go \
    "$cache"/go/usr/lib/go-1.*/bin/go; do
    [ -x "$go" ] || continue
    version=$(cd / && GOTOOLCHAIN=local GOFLAGS='' "$go" env GOVERSION 2>/dev/null) || continue
    version=${version#go} version=${version%% *}
    at_least "$version" 1.21 || continue
    at_least "$version" "$need" || export GOTOOLCHAIN=auto
    # Of Debian's package only the go command was fetched, without the standard library.
    case $go in "$cache"/go/*) export GOTOOLCHAIN=go$need ;; esac
    PATH=$(dirname "$go"):$PATH
    return
  done
  return 1
}
