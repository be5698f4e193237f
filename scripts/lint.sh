#!/bin/bash
# lint.sh: go vet, golangci-lint and shellcheck. golangci-lint is pinned in .ci/tools/go.mod and
# built once.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
go vet ./...
go vet -tags lab ./tests/...
go tool -modfile=.ci/tools/go.mod golangci-lint run --allow-parallel-runners --timeout 30m ./...
command -v shellcheck >/dev/null || die "shellcheck is missing: run make deps"
shellcheck -x scripts/*.sh packaging/scripts/*.sh .ci/run
find tests -name '*.sh' -print0 | xargs -0 shellcheck -s bash -S error
