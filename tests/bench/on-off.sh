#!/bin/bash
# on-off.sh [OPTION...] [IN_FLIGHT...]: measures the cost of latency by stage and of the flight
# recorder (docs/adr/0038-latency-by-stage.md). It compares this tree with a build that counts and
# records nothing and reads no clock for it, in pairs of alternating order: 4 KiB random reads of
# memory over TCP with "nvmf-target bench". IN_FLIGHT is a queue depth, or QUEUESxDEPTH; by default
# 1 32 128 1024x1. It prints ratios of on to off: medians, and the 95 % interval of the median.
#
#	-p PAIRS    of each (20); fewer than 6 give the least and the highest instead of an interval
#	-t SECONDS  of each measurement (0.3; a second with more than 64 queues)
#	-c T,B      the CPUs of target and bench (0,1)
#	-o          "on" is also watched: a scrape of the metrics each second, an open page, slow_io and
#	            "trace -f", on the CPU of the bench
#	-r FILE     raw results: IN_FLIGHT, ARM, IOPS, CPU ns of an I/O, ns of an I/O
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/../../scripts/env.sh"
find_go || die "no Go found: run make deps"
pairs=20 seconds="" cpus=0,1 watched="" raw=""
while getopts p:t:c:or: option; do
	case $option in
	p) pairs=$OPTARG ;;
	t) seconds=$OPTARG ;;
	c) cpus=$OPTARG ;;
	o) watched=1 ;;
	r) raw=$OPTARG ;;
	*) exit 1 ;;
	esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- 1 32 128 1024x1
restart=20 # pairs after which targets restart, since the placement of memory makes a difference
work=$(mktemp -d)
declare -A target port # by arm
watchers=()
raw=${raw:-$work/raw}
: >"$raw"
stop() { # PID...
	[ $# = 0 ] || kill "$@" 2>/dev/null || true
	[ $# = 0 ] || wait "$@" 2>/dev/null || true
}
trap 'stop "${watchers[@]}" "${target[@]}"; rm -rf "$work"' EXIT

# off FILE TEXT NEW: copies a file with the line TEXT replaced, for the build that is off.
off() {
	local copy=$work/$1
	mkdir -p "${copy%/*}"
	[ -e "$copy" ] || cp "$1" "$copy"
	[ "$(grep -cxF "$2" "$copy")" = 1 ] || die "$1 does not have this line once: $2"
	OLD=$2 NEW=$3 awk '$0 == ENVIRON["OLD"] {print ENVIRON["NEW"]; next} {print}' "$copy" \
		>"$copy.new"
	mv "$copy.new" "$copy"
	echo "$1" >>"$work/files"
}
returns() { off "$1" "$2" "$2
	return"; }
returns fabric/stage.go 'func (r *Request) Spent(s Stage, now int64) {'
returns nvme/target/latency.go 'func (h *Handler) Sent(r *fabric.Request) {'
returns nvme/target/trace.go 'func (c *cmd) record(r *fabric.Request, status uint16) {'
off internal/reactor/clock.go 'func (r *Reactor) Clock() int64 { return sinceEpoch() }' \
	'func (r *Reactor) Clock() int64 { return r.clock.now }'
while read -r file; do
	printf '%s\t%s\n' "$PWD/$file" "$work/$file"
done <"$work/files" | sort -u | jq -Rn '{Replace: [inputs | split("\t") | {(.[0]): .[1]}] | add}' \
	>"$work/overlay.json"
build() { go build -trimpath -ldflags -buildid= "${@:2}" -o "$work/$1/nvmf-target" ./cmd/nvmf-target; }
build on
build off -overlay "$work/overlay.json"
! cmp -s "$work/on/nvmf-target" "$work/off/nvmf-target" || die "both builds are the same"

# start ARM: starts a target.
start() {
	local arm=$1 line=""
	cat >"$work/$arm/target.yaml" <<-EOF
		listeners: [{transport: tcp, address: 127.0.0.1, port: 0}]
		subsystems:
		  - nqn: nqn.2026-11.io.nvmf-target:bench
		    allow_any_host: true
		    max_io_queues: 1024
		    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
		reactors: {count: 1}
		tcp: {queue_depth: 256}
	EOF
	[ -z "$watched" ] || [ "$arm" = off ] || cat >>"$work/$arm/target.yaml" <<-EOF
		log: {slow_io: 10ms}
		metrics: {listen: "127.0.0.1:0"}
		web: {listen: "127.0.0.1:0"}
	EOF
	STATE_DIRECTORY=$work/$arm RUNTIME_DIRECTORY=$work/$arm taskset -c "${cpus%,*}" \
		"$work/$arm/nvmf-target" serve "$work/$arm/target.yaml" >"$work/$arm/log" 2>&1 &
	target[$arm]=$!
	for _ in $(seq 300); do
		line=$(sed -n 's/.* -a 127.0.0.1 -s \([0-9]*\) .*/\1/p' "$work/$arm/log")
		[ -z "$line" ] || break
		kill -0 "${target[$arm]}" 2>/dev/null || die "$(cat "$work/$arm/log")"
		sleep 0.1
	done
	[ -n "$line" ] || die "$(cat "$work/$arm/log")"
	port[$arm]=$line
}
# url WHAT: prints the address of something that the measured target serves.
url() { sed -n "s|.*msg=\"$1\".* url=\(http://[^ ]*\).*|\1|p" "$work/on/log"; }
# watch starts the observers of that target.
watch() {
	local metrics page
	metrics=$(url "metrics are served") page=$(url "the page is served")
	if [ -z "$metrics" ] || [ -z "$page" ]; then die "the target that is on is not watched"; fi
	# shellcheck disable=SC2016  # expanded by that shell
	taskset -c "${cpus#*,}" bash -c 'while curl -sfo /dev/null "$0"; do sleep 1; done' "$metrics" &
	watchers=($!)
	taskset -c "${cpus#*,}" curl -sN -o "$work/events" "${page%/}/events" &
	watchers+=($!)
	taskset -c "${cpus#*,}" "$work/on/nvmf-target" trace -f --socket "$work/on/control.sock" \
		>"$work/trace" 2>&1 &
	watchers+=($!)
}
# unwatch ends them. They must have run until now, and seen something.
unwatch() {
	local pid
	for pid in "${watchers[@]}"; do
		kill -0 "$pid" 2>/dev/null || die "a watcher has ended: $(tail -n 3 "$work/trace")"
	done
	stop "${watchers[@]}"
	watchers=()
	if [ ! -s "$work/events" ] || [ ! -s "$work/trace" ]; then die "nothing was watched"; fi
}
cpu_time() { # ARM: nanoseconds that its threads have run
	cat "/proc/${target[$1]}"/task/*/schedstat | awk '{s += $1} END {printf "%.0f\n", s}'
}
# load ARM QUEUES DEPTH SECONDS: prints commands, CPU ns of the target, ns of a command, IOPS.
load() {
	local before after
	before=$(cpu_time "$1")
	taskset -c "${cpus#*,}" "$work/on/nvmf-target" bench --address "127.0.0.1:${port[$1]}" \
		--subsystem nqn.2026-11.io.nvmf-target:bench --numjobs "$2" --iodepth "$3" \
		--runtime "$4s" --threads 1 --json "$work/report" >"$work/out" 2>&1 ||
		die "$(cat "$work/out")"
	after=$(cpu_time "$1")
	jq -r --argjson cpu $((after - before)) \
		'.runs[0].groups[0].reads | "\(.commands) \($cpu) \(.mean_us * 1000) \(.iops)"' "$work/report"
}
# measure ARM IN_FLIGHT: adds a line to the raw results. The cost of connecting, taken from a
# measurement of a millisecond, is subtracted from the CPU time.
declare -A connecting
measure() {
	local queues=1 depth=$2 s=${seconds:-0.3} commands cpu ns iops few spent
	[[ $2 != *x* ]] || { queues=${2%x*} depth=${2#*x}; }
	[ -n "$seconds" ] || [ "$queues" -le 64 ] || s=1
	if [ -z "${connecting[$1 $2]:-}" ]; then
		read -r few spent _ _ < <(load "$1" "$queues" "$depth" 0.001)
		connecting[$1 $2]="$few $spent"
	fi
	read -r few spent <<<"${connecting[$1 $2]}"
	[ -z "$watched" ] || [ "$1" = off ] || watch
	read -r commands cpu ns iops < <(load "$1" "$queues" "$depth" "$s")
	[ ${#watchers[@]} = 0 ] || unwatch
	echo "$2 $1 $iops $(((cpu - spent) / (commands - few))) ${ns%.*}" >>"$raw"
}
# summary VALUES: the median of the lines, and the 95 % interval of the median by order statistics.
summary() { # FORMAT
	sort -g | awk -v f="$1" '{v[NR] = $1} END {
		k = NR < 6 ? 1 : int((NR - 1.96 * sqrt(NR)) / 2); if (k < 1) k = 1
		printf f " (" f " to " f ")", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[k], v[NR + 1 - k]
	}'
}
# column IN_FLIGHT COLUMN: on and off of each pair.
column() {
	awk -v w="$1" -v c="$2" '$1 == w {v[$2] = $c; if (++n % 2 == 0) print v["on"], v["off"]}' "$raw"
}

for workload; do
	for ((i = 0; i < pairs; i++)); do
		if ((i % restart == 0)); then
			stop "${target[@]}"
			connecting=()
			start on
			start off
		fi
		order=(on off)
		((i % 2 == 0)) || order=(off on)
		for arm in "${order[@]}"; do measure "$arm" "$workload"; done
	done
	echo "$workload in flight, $pairs pairs, on / off:"
	echo "  IOPS             $(column "$workload" 3 | awk '{print $1 / $2}' | summary %.3f)"
	echo "  CPU time of one  $(column "$workload" 4 | awk '{print $1 / $2}' | summary %.3f)"
	echo "  time of one, us  $(column "$workload" 5 | awk '{print ($1 - $2) / 1000}' | summary %+.2f)"
done
