#!/bin/bash
# test.sh [all|unit|soak]: runs every check, fast failures first and the lab last. "unit" leaves out
# the lab and the installation of packages. "soak" runs the rest of the tests: tests that measure
# time or take long, longer fuzzing, all of tests/isolation, tests/live with 400 configurations,
# 500,000 random commands, all of scripts/package-test.sh, and every scenario of the lab in full
# (tests/lab/README.md). Every step runs, even after a failure. At the end it prints the skipped
# tests with their reasons, the tests left to "make soak", the last lines of failed tests with the
# versions of the programs around them, and the number of tests. NVMF_TEST_LOG keeps the output of
# every step in a directory; otherwise only the output of failures is shown.
set -uo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
what=${1:-all}
case $what in
  all) scripts/deps.sh test ;;
  unit) scripts/deps.sh unit ;;
  soak) export NVMF_TEST_SOAK=1; scripts/deps.sh test && scripts/deps.sh package ;;
  *) die "usage: test.sh [all|unit|soak]" ;;
esac || exit 1
find_go || die "no Go found"
# A program with the race detector waits for a second before it exits.
export GORACE="${GORACE:-} atexit_sleep_ms=0"
mkdir -p "$cache"
recorded=$cache/durations
touch "$recorded"
fuzz_cache=$cache/fuzz
. tests/lab/common.sh # for duration; it changes $cache
logs=${NVMF_TEST_LOG:-$(mktemp -d)}
[ -n "${NVMF_TEST_LOG:-}" ] || trap 'rm -rf "$logs"' EXIT
mkdir -p "$logs"
# Tests record the keys that they make (testutil.Secret) here, after the keys in their sources. No
# log may have one.
NVMF_TEST_KEYS=$(readlink -f "$logs")/keys; export NVMF_TEST_KEYS
grep -rnoE --include='*_test.go' '(DHHC|NVMeTLSkey)-1:0[0-3]:[A-Za-z0-9+/]{24}' . |
  awk -F: '{printf "%s\t%s\n", $NF, $1}' >"$NVMF_TEST_KEYS"

# A binary without cgo reports that it cannot use RDMA devices.
without_cgo() {
  CGO_ENABLED=0 go build -o "$logs/nvmf-target-tcp" ./cmd/nvmf-target
  "$logs/nvmf-target-tcp" version | tee /dev/stderr | grep -q 'soft: built without' ||
    die "version does not say that RDMA devices are missing"
  CGO_ENABLED=0 go vet ./...
}

# fuzz_all EXECUTIONS: fuzzes each target. The suite runs the corpora as well. A number of executions
# instead of a time: with a time, Go before 1.27 sometimes fails at its end (go.dev/issue/75804).
fuzz_all() {
  local package target rc=0 binary=$logs/fuzz.test
  for package in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
    go test -c -fuzz=. -o "$binary" "$package" || { rc=1; continue; }
    for target in $("$binary" -test.list '^Fuzz' | grep '^Fuzz'); do
      echo "ok fuzzing $package $target"
      (cd "$package" && "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$1" \
        -test.fuzzminimizetime 100x -test.fuzzcachedir "$fuzz_cache/$package") || rc=1
    done
  done
  return $rc
}

# The tests of goroutines and reactors that wait for each other.
alone=$(paste -sd'|' <<'END'
TestNoLostPost|TestNoLostWake|TestWakeBeforeSleep|TestArmRefuses|TestOthersRun|TestYield
TestTimerWhileBusy|TestRunEndsWithContext|TestPool|TestOthersTurn|TestPriority|TestAnotherThread
TestShared|TestArm|TestFlushesShare|TestOfflineAndBack|TestRangeLockExcludes
TestHandOverBuffers|TestManyConnections|TestFloods|TestDisconnectWaitsForExecuting|TestTurnOfInput
TestTurnOfOutput|TestTeardown|TestListenerClosedWhileDeviceIsAway|TestTurns|TestDeviceRemoval
TestMemoryGrantedByAnotherGroup|TestParallelQueues|TestRacingConnects|TestRaceForTheLastController
TestReservationRace|TestSwapUnderLoad|TestRemoveNamespaceUnderIO|TestStress
TestManyFences|TestDrivesAreAskedTogether|TestManyQueues|TestManyAuthenticate
TestStopUnderLoad|TestRemoveNamespaceUnderLoad|TestEndedQueueWithBusyDevice|TestDisconnectDuringIO
TestZeroAllocation|TestArenaStaysUnpopulated
END
)
# Steps: the SECONDS that a step takes on two quiet CPUs, its NAME and COMMAND. After the first run
# the duration recorded on this machine is used instead of SECONDS.
packages="25|packages|scripts/package-test.sh"
[ "$what" != all ] || packages="60|packages, installed|scripts/package-test.sh install"
suite() { # the packages of the suite: internal/lint is a step of its own
  go list ./... | grep -v '/internal/lint$'
}
run_suite() {
  # shellcheck disable=SC2046  # a list of packages
  go test -v -timeout 20m -race -tags invariants -shuffle=on -count=1 $(suite)
}
# Problems that show only on one processor, with goroutines and reactors that wait for each other,
# and problems hidden by the race detector and the invariants tag: allocations over RDMA, and memory
# that was never touched.
one_processor() {
  GOMAXPROCS=1 go test -v -p 2 -timeout 20m -shuffle=on -count=1 -run "^($alone)\$" \
    ./backend/... ./fabric/... ./nvme/... ./internal/mem ./internal/reactor ./internal/turns \
    ./internal/uring ./tests/e2e
}
# The measurements by themselves: one package after another, without the race detector. Packages
# without them are left to "all".
measurements() {
  # shellcheck disable=SC2046  # a list of packages
  go test -v -p 1 -timeout 2h -count=1 $(
    grep -rlE --include='*_test.go' 'testutil\.(Soak|Rounds)|backendtest\.' . | xargs -n1 dirname | sort -u |
      grep -Ev '/(internal/lint|tests/(isolation(/tcp|/strangers)?|live|lab))$')
}
steps=(
  "38|build|go build ./..."
  "5|rules of internal/lint|go test -v -count=1 ./internal/lint"
  "19|build without cgo|without_cgo"
  "97|lint|scripts/lint.sh"
  "$packages"
  "60|fuzzing|fuzz_all 3000x"
  "240|tests: race detector, invariants, random order|run_suite"
  "30|tests on one processor|one_processor"
)
lab="go test -v -tags lab -count=1 ./tests/lab -timeout"
isolation="env NVMF_ISOLATION_SECONDS=300 go test -v -count=1 -timeout 3h -p 1 ./tests/isolation/..."
# Two packages at once: neither measures.
random="env NVMF_LIVE_CONFIGS=400 NVMF_MODEL_COMMANDS=500000 TMPDIR=/dev/shm \
go test -v -count=1 -timeout 3h -run ^(TestChain|TestModel)$ ./tests/live ./tests/e2e/random"
case $what in
  all) steps+=("480|lab|$lab 60m") ;;
  soak) steps=(
    "700|tests that measure or take long|measurements"
    "120|fuzzing|fuzz_all 20000x"
    "1100|isolation|$isolation"
    "90|steps of reactors|env NVMF_TURNS=1 go test -v -tags invariants -count=1 -run ^TestSteps\$ ./tests/isolation"
    "230|random configurations and commands|$random"
    "300|packages, built twice and installed|scripts/package-test.sh all"
    "2300|lab in full|$lab 5h"
  ) ;;
esac
expected() { # STEP: prints its duration in seconds
  local usual=${1%%|*} name=${1#*|}
  awk -F'|' -v name="${name%%|*}" -v s="$usual" '$2 == name {s = $1} END {print s}' "$recorded"
}
record() { # NAME SECONDS
  { awk -F'|' -v name="$1" '$2 != name' "$recorded"; echo "$2|$1"; } >"$recorded.new"
  mv "$recorded.new" "$recorded"
}

# run NAME COMMAND: shows the progress of the step, and all of its output if it fails.
passed=0 failed=0 steps_failed=()
run() {
  local name=$1 log rc begin=$SECONDS
  log=$logs/${name//[^a-z0-9]/-}.log
  # shellcheck disable=SC2086  # a command with its arguments
  $2 2>&1 </dev/null | tee "$log" | grep --line-buffered -E '^(ok|lab: )|^--- FAIL'
  rc=${PIPESTATUS[0]}
  if [ "$rc" = 0 ]; then
    record "$name" $((SECONDS - begin))
  else
    grep -Ev '^(=== (RUN|PAUSE|CONT|NAME)|\s*--- (PASS|SKIP)|PASS$|lab: .* (passed|is left))' "$log"
    steps_failed+=("$name")
    failures "$log" >>"$logs/failures"
    grep -qE '^\s*--- FAIL' "$log" || failed=$((failed + 1))
  fi
  passed=$((passed + $(grep -cE '^\s*--- PASS' "$log")))
  failed=$((failed + $(grep -cE '^\s*--- FAIL' "$log")))
  skips "$name" "$log" >>"$logs/skipped"
  echo "    $([ "$rc" = 0 ] && echo passed || echo FAILED) in $((SECONDS - begin)) s"
}
# skips STEP LOG: prints TEST|REASON|STEP for every skipped test. The reason is the last message of
# the test.
skips() {
  awk -v step="$1" '
    /^=== (RUN|NAME|CONT)/ { test = $3 }
    /^ +[a-z0-9_]+\.go:[0-9]+: / { reason[test] = $0; sub(/^ +[^ ]+ /, "", reason[test]) }
    /^ *--- SKIP: / { print $3 "|" reason[$3] "|" step; reason[$3] = "" }' "$2"
}
# failures LOG: prints the last messages of every failed test, and the failed check of a scenario.
# Without failed tests it prints the end of the log.
failures() {
  awk '
    { line = substr($0, 1, 160) }
    /^=== (RUN|NAME|CONT)/ { test = $3; next }
    /^ *--- FAIL: / { failed[++n] = $3; next }
    /^ *--- |^(ok|PASS|FAIL|exit status)/ { next }
    /^ *FAIL: / { cause[test] = cause[test] line "\n" }
    { said[test, ++lines[test]] = line; all[++count] = line }
    END {
      for (i = 1; i <= n; i++) {
        t = failed[i]
        print t
        printf "%s", cause[t]
        for (j = lines[t] - 7; j <= lines[t]; j++) if (j > 0) print said[t, j]
      }
      if (!n) for (j = count - 7; j <= count; j++) if (j > 0) print all[j]
    }' "$1" | sed '/^ *$/d; s/^/    /'
}

# versions: prints the versions of programs that no file of this module pins.
versions() {
  local program
  echo "    $(uname -sr), $(. /etc/os-release && echo "$PRETTY_NAME"), $(go env GOVERSION)"
  for program in gcc chromium-headless-shell fio nvme openssl tlshd tshark qemu-system-x86_64; do
    command -v "$program" >/dev/null || continue
    echo "    $program: $("$program" --version 2>&1 </dev/null | grep -m1 .)"
  done
  dpkg-query -W -f '    ${Package} ${Version}\n' rdma-core libibverbs1 libssl3 libssl3t64 2>/dev/null
}

: >"$logs/skipped"
: >"$logs/failures"
left=0
for s in "${steps[@]}"; do left=$((left + $(expected "$s"))); done
n=0
for s in "${steps[@]}"; do
  IFS='|' read -r _ name command <<<"$s"
  n=$((n + 1)) seconds=$(expected "$s")
  echo "==> $n of ${#steps[@]}: $name, $(duration "$seconds"); $(duration $left) to the end"
  run "$name" "$command"
  left=$((left - seconds))
done

reasons() { cut -d'|' -f1,2 | sort -u | sed 's/|/: /; s/^/    /'; }
others=$(grep -v '|left to make soak' "$logs/skipped" | reasons)
left=$(sed -n 's/|left to make soak[,:] */|/p' "$logs/skipped" | reasons)
[ -z "$others" ] || printf '==> skipped, and why\n%s\n' "$others"
[ -z "$left" ] || printf '==> left to make soak, and why\n%s\n' "$left"
echo "==> keys in the output"
scripts/leaked-keys.sh "$NVMF_TEST_KEYS" "$logs"/*.log || steps_failed+=("keys in the output")
if [ -s "$logs/failures" ]; then
  echo "==> what failed"
  cat "$logs/failures"
  echo "==> what the tests found on this machine"
  versions
fi
[ ${#steps_failed[@]} = 0 ] || printf 'failed: %s\n' "${steps_failed[@]}"
echo "$passed passed, $failed failed, $(cut -d'|' -f1,2 "$logs/skipped" | sort -u | wc -l) skipped"
[ ${#steps_failed[@]} = 0 ]
