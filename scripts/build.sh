#!/bin/bash
# build.sh: builds bin/nvmf-target.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)
go build -trimpath -ldflags "-X main.version=$version" -o bin/ ./cmd/nvmf-target
