#!/bin/bash
# run.sh SCENARIO [VARIANT] [NAME=VALUE...]: runs one scenario of scenarios/ in the user-mode
# kernel.
# run.sh SCENARIO/VARIANT... [NAME=VALUE...]: several, one after another in the same kernel, which
# must be in the same state after each. After one that fails the rest run in a new kernel. They need
# the same CPUs and parameter. The head of a scenario has:
#   # variants: rxe tcp ...   its transports; the first one is the default
#   # soak: soft ...          more of them, which only "make soak" runs, as a sample
#   # root: soft ...          those whose target must run as root: AS_ROOT=1
#   # smoke: rxe tcp ...      variants that "make test" always runs, in their shortest form
#   # covers: DIR ...         packages of the target under test
#   # cpus: 1                 CPUs of the kernel
#   # limit: 300              seconds, 240 by default: six times the time on a quiet machine
#   # go-test: ./package      its test binary is built and given to the scenario as $TEST_BIN
#   # cc: DIR                 a program of its C files, given to the scenario as $CULPRIT_BIN
#   # kernel: NAME=VALUE      a parameter of the kernel
#   # debian: PACKAGE...       of Debian 13, in a root directory that is $DEBIAN_ROOT
#   # unpack: PACKAGE...       of Debian testing, unpacked into a directory that is $UNPACKED;
#                             empty if they cannot be had
#   # alone: REASON           in full, nothing else may run beside it
# TARGET_BIN=FILE names the target's binary; TARGET=nvmet runs the kernel's target instead. SAMPLE=N
# has scenarios with long matrices run a sample of them, chosen by the seed N, and compare no
# durations or rates with bounds; SMOKE=1 besides is the shortest form. AS_ROOT=1 lets the target of
# the variants soft and softiw run as root, as scenarios with disks need. $NVMF_LAB_OUT keeps the
# files that the scenario writes.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
scenarios=$(cd "$lab/scenarios" && echo *.sh)
[ $# -ge 1 ] || die "usage: run.sh SCENARIO [VARIANT] [NAME=VALUE...]; scenarios: $scenarios"
head_value() { sed -n "s/^# $1: *//p" "$script" | head -n1; }
find_script() { # SCENARIO
  script=$lab/scenarios/${1%.sh}.sh
  [ -e "$script" ] || die "no scenario $script"
}
runs=()
if [[ $1 = */* ]]; then
  while [ $# -gt 0 ] && [[ $1 != *=* ]]; do runs+=("$1"); shift; done
else
  find_script "$1"; name=${1%.sh}; shift
  variant=$(head_value variants); variant=${variant%% *}
  if [ $# -gt 0 ] && [[ $1 != *=* ]]; then variant=$1; shift; fi
  runs=("$name/$variant")
fi
out=${NVMF_LAB_OUT:-}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
[ -n "$out" ] || out=$tmp/out

list=$tmp/list cpus='' parameter=''
for run in "${runs[@]}"; do
  find_script "${run%/*}"; variant=${run#*/}
  package=$(head_value go-test) cc=$(head_value cc) debian=$(head_value debian)
  unpack=$(head_value unpack) limit=$(head_value limit) settings="TRANSPORT=$variant"
  case " $(head_value root) " in *" $variant "*) settings+=" AS_ROOT=1" ;; esac
  if [ -n "$package" ]; then
    need go
    binary=$tmp/${package//[.\/]/_}.test
    [ -e "$binary" ] || (cd "$lab/../.." && go test -c -o "$binary" "$package")
    settings+=" TEST_BIN=/run/host$binary"
  fi
  if [ -n "$cc" ]; then
    gcc -O2 -Wall -o "$tmp/$cc" "$lab/$cc"/*.c -libverbs -lrdmacm
    settings+=" CULPRIT_BIN=/run/host$tmp/$cc"
  fi
  if [ -n "$debian" ]; then
    # shellcheck disable=SC2086  # a list of names
    settings+=" DEBIAN_ROOT=/run/host$("$lab/build-root.sh" $debian)"
    settings+=" LAB_STATE=" # its daemons stay; run it alone
  fi
  if [ -n "$unpack" ]; then
    # shellcheck disable=SC2086  # a list of names
    dir=$("$lab/unpack.sh" $unpack) || dir='' # Debian testing changes
    settings+=" UNPACKED=${dir:+/run/host$dir}"
  fi
  # siw's transmit thread can crash a kernel of several CPUs when a user-space queue pair fills its
  # socket.
  case $variant in siw*) n=1 ;; *) n=$(head_value cpus) n=${n:-1} ;; esac
  [ -s "$list" ] || cpus=$n parameter=$(head_value kernel)
  [ "$n $(head_value kernel)" = "$cpus $parameter" ] || die "$run needs another kernel"
  echo "$run ${limit:-240} $script $settings" >>"$list"
done

first=0
while [ -s "$list" ]; do
  rc=0
  "$lab/boot.sh" -c "$cpus" -o "$out" -l "$list" ${parameter:+"$parameter"} "$@" || rc=$?
  [ $rc != 130 ] || exit 130 # interrupted
  if [ $rc != 0 ]; then : >"$out/results"; fi
  done=$(wc -l <"$out/results")
  code=$(awk '$2 != 0 && $2 != 77 {c = $2} END {print c + 0}' "$out/results")
  began=$(cut -d ' ' -f 1 "$out/current" 2>/dev/null) || began=''
  if [ $done = 0 ] || { [ "$code" = 0 ] && ! grep -q "^$began " "$out/results"; }; then
    code=125
    echo "lab: end of $(sed -n "$((done + 1))s/ .*//p" "$list"), exit code $code, 0 s"
    done=$((done + 1))
  elif [ ${#runs[@]} = 1 ]; then
    code=$(cut -d ' ' -f 2 "$out/results")
  fi
  [ $first != 0 ] || first=$code
  sed -i "1,${done}d" "$list"
done
exit $first
