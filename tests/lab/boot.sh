#!/bin/bash
# boot.sh [-c CPUS] [-m MEMORY] [-t SECONDS] [-o DIR] [-k KERNEL] SCRIPT [NAME=VALUE...]
# boot.sh [-c CPUS] [-m MEMORY] -o DIR [-k KERNEL] -l LIST [NAME=VALUE...]
# Boots a user-mode Linux kernel on this machine's own file system, read-only, runs SCRIPT inside as
# root and powers off. The exit code is that of SCRIPT; 124 after SECONDS; 125 if the kernel ended
# before the script. SCRIPT has every NAME=VALUE in its environment (values without blanks) and DIR,
# writable, at /run/out. A LIST has lines NAME SECONDS SCRIPT [NAME=VALUE...]: these run one after
# another, until one fails, and add lines NAME EXIT-CODE to DIR/results.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
usage="usage: $(sed -n '2,3s/^# //p' "$0")"
cpus=1 mem=3G limit=120 out='' kernel=${NVMF_LAB_KERNEL:-} list=''
while getopts c:m:t:o:k:l: opt; do
  case $opt in
    c) cpus=$OPTARG ;; m) mem=$OPTARG ;; t) limit=$OPTARG ;; o) out=$OPTARG ;; k) kernel=$OPTARG ;;
    l) list=$OPTARG ;;
    *) die "$usage" ;;
  esac
done
shift $((OPTIND - 1))
script=''
if [ -z "$list" ]; then
  [ $# -ge 1 ] || die "$usage"
  script=$(readlink -f "$1"); shift
fi
[ -n "$kernel" ] || kernel=$("$lab/build-kernel.sh")
tmp=''
if [ -z "$out" ]; then out=$(mktemp -d); tmp=$out; fi
trap '[ -z "$tmp" ] || rm -rf "$tmp"' EXIT
mkdir -p "$out"; out=$(readlink -f "$out"); rm -f "$out"/{rc,list,results,current,began}
if [ -n "$list" ]; then cp "$list" "$out/list"; limit=7d; fi

# The kernel's memory is a file in TMPDIR: in memory if there is room.
ram=/dev/shm; [ -w $ram ] || ram=$cache
mhz=$(awk '/cpu MHz/{print $4; exit}' /proc/cpuinfo)
TMPDIR=$ram timeout -k 5 "$limit" "$kernel" mem="$mem" ncpus="$cpus" seccomp=on \
  root=/dev/root rootfstype=hostfs rootflags=/ ro init="$lab/init.sh" \
  con=null con0=null,fd:1 con1=null panic=-1 hung_task_panic=0 \
  null_blk.nr_devices=0 brd.rd_nr=2 brd.rd_size=4194304 \
  LAB_VM=uml LAB_DIR="$lab" LAB_OUT="$out" ${script:+LAB_SCRIPT="$script"} LAB_MHZ="$mhz" \
  LAB_LIMIT="$limit" "$@" </dev/null & pid=$!
trap '[ -z "$pid" ] || kill $pid; [ -z "$tmp" ] || rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
# Of a list, the kernel ends each scenario at its limit; this ends a kernel that cannot.
[ -z "$list" ] || (
  last='' now='' since=$SECONDS
  while sleep 5; [ -e "$out" ] && kill -0 $pid; do
    now=$(cat "$out/current" || true)
    if [ "$now" != "$last" ]; then last=$now since=$SECONDS; fi
    limit=${now##* }
    [ $((SECONDS - since)) -le $((${limit:-60} + 60)) ] || kill $pid
  done
) >/dev/null 2>&1 &
wait $pid && rc=0 || rc=$?
pid=''
if [ -n "$list" ] && [ -s "$out/results" ]; then exit 0; fi
if [ -e "$out/rc" ]; then exit "$(cat "$out/rc")"; fi
[ "$rc" = 124 ] || [ "$rc" = 137 ] || rc=125
[ "$rc" = 125 ] || { echo "boot.sh: stopped after $limit seconds"; rc=124; }
exit "$rc"
