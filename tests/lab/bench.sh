#!/bin/bash
# bench.sh [TARGET_BIN]: the target and the kernel's nvmet by turns in one boot with the same initiator, over each link, beside what perftest
# moves; prints a table. Without TARGET_BIN the target is built from this tree. A quarter of an hour; with ALL=1 hours.
#   ALL=1             every workload, several queues included
#   RUN="QD 32"       only workloads whose name matches this regular expression, of all there are
#   OUT=DIR           writes report (lab.json) and plot (lab.svg) there
#   LINKS="rxe siw tcp"  ROUNDS=5  SECONDS_EACH=1 (ALL: 3)  CPUS=1  RECORDS=FILE (keeps what was measured)
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
need go
bin=$(target_binary "${1:-}" "$work") out=${OUT:+$(readlink -m "$OUT")}
(cd "$lab/../.." && go build -o "$work/bench" ./tests/bench)
load() { echo "#load $(cut -d' ' -f1 /proc/loadavg)"; }
load | awk '$2 > 0.5 { print "warning: the load of this machine is " $2 ": other work shows in the figures" }'
links=${LINKS:-rxe siw tcp} run=${RUN:-} all=${ALL:-0} each=1 limit=3600
if [ "$all" = 1 ]; then each=3 limit=36000; fi
# What is given to a kernel has no blanks; "." matches them.
settings=(TARGET=ours TARGET_BIN="$bin" LINKS="${links// /,}" ROUNDS="${ROUNDS:-5}" SECONDS_EACH="${SECONDS_EACH:-$each}" ALL="$all" RUN="${run// /.}")
run=("$lab/boot.sh" -c "${CPUS:-1}" -t "$limit" -o "$work/out" "$lab/bench-inside.sh")
while load; do sleep 30; done >"$work/loads" & loads=$!
rc=0
"${run[@]}" "${settings[@]}" >"$work/log" 2>&1 || rc=$?
kill $loads
if [ $rc != 0 ]; then cat "$work/log"; exit $rc; fi
cat "$work/loads" >>"$work/out/records"
[ -z "${RECORDS:-}" ] || cp "$work/out/records" "$RECORDS"
"$work/bench" -lab "$work/out/records" -out "$out"
