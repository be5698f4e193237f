#!/bin/bash
# cluster.sh show|failover [TRANSPORT=tcp|rxe] [TARGET_BIN=FILE] [NAME=VALUE...]: boots a kernel of
# the lab with a small Ceph cluster, two gateways to one of its images, and a Linux host that
# writes. "show" kills one gateway, drains the other one, and explains each step. "failover" runs
# scenarios/gateways.sh with ROUNDS=50 and prints the longest stalls; it takes EVENTS, STOP, MIXED
# and OLD_BIN as well. Without TARGET_BIN the target is built from this tree.
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"
what=${1:-}; [ $# = 0 ] || shift
for setting; do export "${setting?}"; done
case $what in
  show) script=$lab/cluster-inside.sh limit=600 ;;
  failover) script=$lab/scenarios/gateways.sh limit=604800 ;;
  *) die "usage: cluster.sh show|failover [NAME=VALUE...]" ;;
esac
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
[ -n "${TARGET_BIN:-}" ] || echo "building the target: up to a minute the first time" >&2
bin=$(target_binary "${TARGET_BIN:-}" "$work")
kernel=$("$lab/build-kernel.sh")
"$lab/boot.sh" -k "$kernel" -c 2 -t "$limit" -o "$work/out" "$script" \
  TRANSPORT="${TRANSPORT:-tcp}" TARGET_BIN="$bin" ROUNDS="${ROUNDS:-50}" \
  EVENTS="${EVENTS:-}" STOP="${STOP:-}" MIXED="${MIXED:-}" \
  OLD_BIN="${OLD_BIN:-}" 2>&1 | filter
rc=${PIPESTATUS[0]}
[ -e "$work/out/stalls" ] || exit $rc
echo "event     times   longest stall in ms: median      max"
sort -k1,1 -k2,2n "$work/out/stalls" | awk '
  function row() { if (n) printf "%-8s %6d %28d %8d\n", event, n, v[int((n + 1) / 2)], v[n] }
  $1 != event { row(); event = $1; n = 0 }
  { v[++n] = $2 }
  END { row() }'
if [ $rc = 0 ]; then echo "no I/O has failed, and none was lost"; else echo "FAILED"; fi
exit $rc
