#!/bin/bash
# bench.sh [TARGET_BIN]: 4 KiB random reads at depths 1 and 32, the target and the kernel's nvmet by turns in one boot with the same
# initiator, and a table of both. Without TARGET_BIN the target is built from this tree.
#   LINKS="rxe siw tcp"  ROUNDS=5  SECONDS_EACH=3  CPUS=1
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
bin=$(target_binary "${1:-}" "$work")
load=$(cut -d' ' -f1 /proc/loadavg)
awk -v l="$load" 'BEGIN { if (l > 0.5) print "warning: the load of this machine is " l ": other work shows in the figures" }'
links=${LINKS:-rxe siw tcp}
settings=(TARGET="${TARGET:-ours}" TARGET_BIN="$bin" LINKS="${links// /,}" ROUNDS="${ROUNDS:-5}" SECONDS_EACH="${SECONDS_EACH:-3}")
run=("$lab/boot.sh" -c "${CPUS:-1}" -t 1800 -o "$work/out" "$lab/bench-inside.sh")
rc=0
"${run[@]}" "${settings[@]}" >"$work/log" 2>&1 || rc=$?
if [ $rc != 0 ]; then cat "$work/log"; exit $rc; fi
cat "$work/out/table"
