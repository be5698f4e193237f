#!/bin/bash
# run.sh SCENARIO [VARIANT] [NAME=VALUE...]: runs one scenario of scenarios/ in the user-mode
# kernel, according to its head:
#   # variants: rxe tcp ...   its transports; the first one is the default
#   # sample: 1               how many of them "make test" runs, chosen by a seed; all without it
#   # cpus: 1                 CPUs of the kernel
#   # limit: 300              seconds, 240 by default: six times what a quiet machine takes
#   # go-test: ./package      its test binary is built and given to the scenario as $TEST_BIN
#   # cc: DIR                 a program of its C files, given to the scenario as $CULPRIT_BIN
#   # kernel: NAME=VALUE      a parameter of the kernel
#   # debian: PACKAGE...       of Debian 13, in a root directory that is $DEBIAN_ROOT
#   # unpack: PACKAGE...       of Debian testing, unpacked into a directory that is $UNPACKED
#   # alone: REASON           nothing else may run beside it
# TARGET_BIN=FILE names the target's binary; TARGET=nvmet runs the kernel's target instead. SAMPLE=N
# has scenarios with long matrices run a sample of them, chosen by the seed N. $NVMF_LAB_OUT keeps
# the files that the scenario writes.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
scenarios=$(cd "$lab/scenarios" && echo *.sh)
[ $# -ge 1 ] || die "usage: run.sh SCENARIO [VARIANT] [NAME=VALUE...]; scenarios: $scenarios"
script=$lab/scenarios/${1%.sh}.sh; shift
[ -e "$script" ] || die "no scenario $script"
head_value() { sed -n "s/^# $1: *//p" "$script" | head -n1; }
variant=$(head_value variants); variant=${variant%% *}
if [ $# -gt 0 ] && [[ $1 != *=* ]]; then variant=$1; shift; fi
cpus=$(head_value cpus) limit=$(head_value limit) package=$(head_value go-test) cc=$(head_value cc)
parameter=$(head_value kernel) debian=$(head_value debian) unpack=$(head_value unpack)
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
if [ -n "$package" ]; then
  need go
  (cd "$lab/../.." && go test -c -o "$tmp/go.test" "$package")
  set -- "$@" TEST_BIN="/run/host$tmp/go.test"
fi
if [ -n "$cc" ]; then
  gcc -O2 -Wall -o "$tmp/culprit" "$lab/$cc"/*.c -libverbs -lrdmacm
  set -- "$@" CULPRIT_BIN="/run/host$tmp/culprit"
fi
if [ -n "$debian" ]; then
  # shellcheck disable=SC2086  # a list of names
  root=$("$lab/build-root.sh" $debian)
  set -- "$@" DEBIAN_ROOT="/run/host$root"
fi
if [ -n "$unpack" ]; then
  # shellcheck disable=SC2086  # a list of names
  root=$("$lab/unpack.sh" $unpack)
  set -- "$@" UNPACKED="/run/host$root"
fi
# siw's transmit thread can crash a kernel of several CPUs when a user-space queue pair fills its
# socket.
case $variant in siw*) cpus=1 ;; esac
"$lab/boot.sh" -c "${cpus:-1}" -t "${limit:-240}" ${NVMF_LAB_OUT:+-o "$NVMF_LAB_OUT"} "$script" \
  TRANSPORT="$variant" ${parameter:+"$parameter"} "$@"
