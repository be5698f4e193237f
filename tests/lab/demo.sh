#!/bin/bash
# demo.sh [TARGET_BIN=FILE] [TARGET=nvmet] [TRANSPORT=rxe|siw|tcp]: in about a minute: a kernel boots, the target serves a RAM disk and a
# file over soft RoCE, and a Linux host discovers it, connects, makes a file system, and measures. Without TARGET_BIN the target is
# built from this tree.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
for setting; do export "${setting?}"; done
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
bin=$(target_binary "${TARGET_BIN:-}" "$work")
"$lab/install.sh"
kernel=$("$lab/build-kernel.sh")
# The kernel's own boot messages are left out; the whole output is kept for a failure.
"$lab/boot.sh" -k "$kernel" -t 120 "$lab/demo-inside.sh" TARGET="${TARGET:-ours}" TARGET_BIN="$bin" TRANSPORT="${TRANSPORT:-rxe}" 2>&1 |
  tee "$work/log" | sed -u -e '/^Core dump limits/d;/^\t\(soft\|hard\) -/d;/^Checking /d;/^lab: end/d;/^\[ *[0-9.]*\] /d;/^$/d'
exit "${PIPESTATUS[0]}"
