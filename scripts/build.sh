#!/bin/bash
# build.sh [DIR]: builds nvmf-target into DIR, which is bin by default.
set -euo pipefail
dir=$(readlink -m "${1:-$(dirname "$(readlink -f "$0")")/../bin}")
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
# git refuses to describe another user's tree, which is what root sees. Without git the version is
# what the program finds out itself.
version=$(git -c safe.directory="$PWD" describe --tags --always --dirty 2>/dev/null || true)
go build -trimpath -ldflags "-X main.version=$version" -o "$dir/" ./cmd/nvmf-target
