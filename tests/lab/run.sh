#!/bin/bash
# run.sh SCENARIO [VARIANT] [NAME=VALUE...]: runs one scenario of scenarios/ in the user-mode kernel, as its head says:
#   # variants: rxe tcp ...   the transports it is for; the first one is the default
#   # cpus: 1                 CPUs of the kernel        # limit: 120   seconds
#   # go-test: ./package      its test binary is built and given to the scenario as $TEST_BIN
# TARGET_BIN=FILE names the target's binary; TARGET=nvmet runs the kernel's target instead. $NVMF_LAB_OUT keeps what it writes.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ $# -ge 1 ] || die "usage: run.sh SCENARIO [VARIANT] [NAME=VALUE...]; scenarios: $(cd "$lab/scenarios" && echo *.sh)"
script=$lab/scenarios/${1%.sh}.sh; shift
[ -e "$script" ] || die "no scenario $script"
head_value() { sed -n "s/^# $1: *//p" "$script" | head -n1; }
variant=$(head_value variants); variant=${variant%% *}
if [ $# -gt 0 ] && [[ $1 != *=* ]]; then variant=$1; shift; fi
cpus=$(head_value cpus) limit=$(head_value limit) package=$(head_value go-test)
if [ -n "$package" ]; then
  need go
  tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
  (cd "$lab/../.." && go test -c -o "$tmp/go.test" "$package")
  set -- "$@" TEST_BIN="/run/host$tmp/go.test"
fi
# siw's transmit thread can crash a kernel of several CPUs when a user-space queue pair fills its socket.
case $variant in siw*) cpus=1 ;; esac
"$lab/boot.sh" -c "${cpus:-1}" -t "${limit:-60}" ${NVMF_LAB_OUT:+-o "$NVMF_LAB_OUT"} "$script" TRANSPORT="$variant" "$@"
