#!/bin/bash
# before-after.sh BEFORE AFTER [ROUNDS [WORKLOAD]]: measures two builds of nvmf-target in turns, and
# prints the IOPS of each round, and the median, the least and the highest ratio of after to before:
#
#	tests/bench/before-after.sh /tmp/old/nvmf-target bin/nvmf-target 20 '^4K random read QD 32$'
set -euo pipefail
before=$1 after=$2 rounds=${3:-10} workload=${4:-^4K random read QD 32$}
bench=$(mktemp)
trap 'rm -f "$bench"' EXIT
(cd "$(dirname "$0")" && go build -o "$bench" .)
name=${workload#^}
name=${name%$}

# iops prints the result of one round of a build. A missed expectation does not matter.
iops() {
	{ "$bench" -target "$1" -rounds 1 -run "$workload" 2>/dev/null || true; } |
		sed -n "s/^ *$name  *[0-9.]*  *\([0-9.]*\) .*/\1/p" | head -1
}

for ((i = 0; i < rounds; i++)); do
	echo "$(iops "$before") $(iops "$after")"
done | awk '{ print; print $2 / $1 > "/dev/stderr" }' 2> >(
	sort -n | awk '{ r[NR] = $1 } END {
		printf "ratio of kIOPS: median %.3f, %.3f to %.3f\n", r[int((NR + 1) / 2)], r[1], r[NR]
	}'
)
wait
