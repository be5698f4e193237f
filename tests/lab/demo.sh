#!/bin/bash
# demo.sh [TARGET_BIN=FILE] [TARGET=nvmet] [TRANSPORT=rxe|siw|tcp|soft] [LAB=uml|qemu]: boots a
# kernel in which the target serves a RAM disk and a file over soft RoCE, and a Linux host discovers
# it, connects, makes a file system and measures. With TRANSPORT=soft only the host has an RDMA
# device, and the target has no privileges. Without TARGET_BIN it is built from this tree.
#
# LAB=uml takes 40 s in the user-mode kernel of the lab, which has to be compiled once. Until that
# is done, LAB=qemu is the default: Debian's own kernel, emulated by QEMU. Its image is made once,
# in 75 s, and the demo takes 70 s.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
for setting; do export "${setting?}"; done
transport=${TRANSPORT:-rxe}
if [ -z "${LAB:-}" ]; then
  # siw is not in Debian's kernel.
  if "$lab/build-kernel.sh" --cached >/dev/null || [ "$transport" = siw ]; then
    LAB=uml
  else
    LAB=qemu
    echo "The lab's own kernel is not built yet: this demo runs on Debian's kernel under QEMU." >&2
    echo "It takes about 3 minutes the first time, then about 70 s. Emulation makes everything" >&2
    echo "10 to 20 times slower than a real machine. LAB=uml make demo builds the lab's kernel." >&2
  fi
fi
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
[ -n "${TARGET_BIN:-}" ] || echo "building the target: up to a minute the first time" >&2
bin=$(target_binary "${TARGET_BIN:-}" "$work")
settings=(TARGET="${TARGET:-ours}" TARGET_BIN="$bin")
case $LAB in
  uml)
    "$lab/install.sh"
    kernel=$("$lab/build-kernel.sh")
    "$lab/boot.sh" -k "$kernel" -t 240 "$lab/demo-inside.sh" TRANSPORT="$transport" \
      "${settings[@]}" 2>&1 | filter ;;
  qemu)
    "$lab/install.sh" demo
    "$lab/qemu/run.sh" demo "$transport" "${settings[@]}" 2>&1 | filter ;;
  *) die "LAB is uml or qemu, not $LAB" ;;
esac
exit "${PIPESTATUS[0]}"
