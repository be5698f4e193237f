#!/bin/bash
# build.sh [DIR [VERSION]]: builds nvmf-target into DIR, by default bin, as VERSION, by default the
# version from git. The same source gives the same bytes in any directory.
set -euo pipefail
dir=$(readlink -m "${1:-$(dirname "$(readlink -f "$0")")/../bin}")
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
# git refuses to describe a tree of another user, as when root runs this. Without git the program
# derives the version itself.
version=${2:-$(git -c safe.directory="$PWD" describe --tags --always --dirty 2>/dev/null ||
  true)}
go build -trimpath -ldflags "-buildid= -X main.version=$version" -o "$dir/" ./cmd/nvmf-target
