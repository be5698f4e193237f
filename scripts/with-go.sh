#!/bin/bash
# with-go.sh COMMAND...: runs COMMAND at the top of the tree with a Go that can build this module in
# PATH.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
exec "$@"
