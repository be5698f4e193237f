#!/bin/bash
# syscalls.sh PACKAGE...: prints the system calls that the tests of packages make, under strace, and
# packaging/container/seccomp.json does not allow; for instance ./internal/app ./fabric/tcp. Some
# are made by the tests themselves.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for p; do
  go test -c -o "$work/test" "$p"
  (cd "$p"; strace -f -qq -c -U name -o "$work/calls" "$work/test" >/dev/null) || true
  sed '1,2d;/^-/,$d' "$work/calls" >>"$work/all"
done
tr -d ' ' <"$work/all" | sort -u |
  comm -23 - <(jq -r '.syscalls[].names[]' packaging/container/seccomp.json | sort)
