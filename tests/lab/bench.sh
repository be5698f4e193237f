#!/bin/bash
# bench.sh [TARGET_BIN]: measures the target and the kernel's nvmet in one boot, alternating, with
# the same initiator, over each link, beside perftest; and again at depth 1 over soft RoCE under
# QEMU, where host and target have a CPU each, with the target's defaults and with one that spins
# for up to 1 ms. Prints a table and which bounds were met. Without TARGET_BIN the target is built
# from this tree. Takes about half an hour; with ALL=1 three hours.
#   ALL=1             every workload, including several queues
#   RUN="QD 32"       the workloads that match this regular expression, including workloads of ALL=1
#   OUT=DIR           writes report (lab.json) and plot (lab.svg) there
#   VMS="uml qemu spinning"  LINKS="rxe siw tcp"  ROUNDS=5  SECONDS_EACH=1 (ALL: 3)  CPUS=1
#   RECORDS=FILE      keeps the measurements
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
need go taskset
bin=$(target_binary "${1:-}" "$work") out=${OUT:+$(readlink -m "$OUT")}
(cd "$lab/../.." && go build -o "$work/bench" ./tests/bench)
load() { cut -d' ' -f1 /proc/loadavg; }
load | awk '$1 > 0.5 {
  print "warning: the load of this machine is " $1 ": other work shows in the figures" }'
links=${LINKS:-rxe siw tcp} run=${RUN:-} all=${ALL:-0} each=1 limit=7200
if [ "$all" = 1 ]; then each=3 limit=36000; fi
settings=(ROUNDS="${ROUNDS:-5}" SECONDS_EACH="${SECONDS_EACH:-$each}")
# Settings of a kernel have no blanks; "." matches them.
# One CPU inside is one CPU of this machine. The kernel and each process inside are processes here.
# If they may spread, the cost of a system call depends on the distance between two CPUs and on
# other users of the CPUs.
uml() {
  local on=()
  [ "${CPUS:-1}" != 1 ] || on=(taskset -c "$(taskset -cp $$ | sed 's/.*[^0-9]//')")
  "${on[@]}" "$lab/boot.sh" -c "${CPUS:-1}" -t "$limit" -o "$1" "$lab/bench-inside.sh" TARGET=ours \
    TARGET_BIN="$bin" LINKS="${links// /,}" ALL="$all" RUN="${run// /.}" "${settings[@]}"
}
qemu() {
  local rows; rows=$(tr " " . <<<"${RUN:-random (read|write) QD 1$}")
  NVMF_LAB_OUT=$1 "$lab/qemu/run.sh" bench rxe TARGET=ours TARGET_BIN="$bin" LINKS=rxe RUN="$rows" \
    "${settings[@]}" "${@:2}"
}
spinning() { qemu "$1" SPIN=1ms; }
# loads FILE: the load of the machine before each round, which the kernel announces there.
loads() {
  local round='' last=''
  while sleep 0.5; do
    round=$(cat "$1" 2>/dev/null || true)
    [ "$round" = "$last" ] ||
      { last=$round; echo "#load $(load)"; echo "$round, load average $(load)" >&2; }
  done
}
# With a choice of workloads or links only user-mode Linux is booted, unless VMS says otherwise.
partial=${RUN:-}${LINKS:-}${VMS:-}
vms=${VMS:-uml}; [ -n "$partial" ] || vms="uml qemu spinning"
for vm in $vms; do
  mkdir "$work/$vm"
  loads "$work/$vm/round" >>"$work/records" & watcher=$!
  rc=0
  $vm "$work/$vm" >"$work/log" 2>&1 || rc=$?
  kill $watcher
  if [ $rc != 0 ]; then cat "$work/log"; exit $rc; fi
  cat "$work/$vm/records" >>"$work/records"
done
[ -z "${RECORDS:-}" ] || cp "$work/records" "$RECORDS"
"$work/bench" -lab "$work/records" -run "$partial" -out "$out"
