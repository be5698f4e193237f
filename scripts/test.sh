#!/bin/bash
# test.sh [all|unit]: every check there is, the lab last ("unit" leaves it out). Every step runs, whatever failed before; the last line
# counts tests and steps. NVMF_TEST_LOG keeps the full output of each step in a directory; otherwise only that of failures is shown.
set -uo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
what=${1:-all} fuzz_time=${FUZZ_TIME:-10000x}
case $what in all) scripts/deps.sh test ;; unit) scripts/deps.sh unit ;; *) die "usage: test.sh [all|unit]" ;; esac || exit 1
find_go || die "no Go found"
logs=${NVMF_TEST_LOG:-$(mktemp -d)}
[ -n "${NVMF_TEST_LOG:-}" ] || trap 'rm -rf "$logs"' EXIT
mkdir -p "$logs"
passed=0 failed=0 steps_failed=()

# step NAME COMMAND...: runs COMMAND and shows the lines of its output that $show selects, all of it if COMMAND failed.
show='^(ok|--- (FAIL|SKIP))'
step() {
  local name=$1 log rc begin=$SECONDS; shift
  log=$logs/${name//[^a-z0-9]/-}.log
  echo "==> $name"
  "$@" 2>&1 </dev/null | tee "$log" | grep --line-buffered -E "$show"
  rc=${PIPESTATUS[0]}
  if [ "$rc" != 0 ]; then
    grep -Ev '^(=== (RUN|PAUSE|CONT|NAME)|\s*--- PASS|PASS$)' "$log"
    steps_failed+=("$name")
    grep -qE '^\s*--- FAIL' "$log" || failed=$((failed + 1))
  fi
  passed=$((passed + $(grep -cE '^\s*--- PASS' "$log")))
  failed=$((failed + $(grep -cE '^\s*--- FAIL' "$log")))
  echo "    $([ "$rc" = 0 ] && echo passed || echo FAILED) in $((SECONDS - begin)) s"
}

# A binary without cgo serves TCP and says that it has no RDMA.
without_cgo() {
  CGO_ENABLED=0 go build -o "$logs/nvmf-target-tcp" ./cmd/nvmf-target
  "$logs/nvmf-target-tcp" version | tee /dev/stderr | grep -q 'no rdma' || die "version does not say that RDMA is missing"
  CGO_ENABLED=0 go vet ./...
}

# A number of executions instead of a time: with a time, Go before 1.27 fails now and then when it is over (go.dev/issue/75804).
fuzz_all() {
  local package target rc=0
  for package in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
    for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz'); do
      echo "ok fuzzing $package $target"
      go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzz_time" -fuzzminimizetime 100x "$package" || rc=1
    done
  done
  return $rc
}

step "build" go build ./...
step "build without cgo" without_cgo
step "import and unsafe rules" go test -v -count=1 ./internal/lint
step "lint" scripts/lint.sh
step "tests, race detector, random order" go test -v -race -shuffle=on -count=1 ./...
step "tests, one processor" env GOMAXPROCS=1 go test -v -shuffle=on -count=1 ./...
step "tests, costly checks on" go test -v -tags invariants -count=1 ./...
step "fuzzing" fuzz_all
if [ "$what" = all ]; then
  show='^(ok|=== RUN|\s*--- )' # one by one: they take minutes
  step "lab" go test -v -tags lab -count=1 -timeout 80m ./tests/lab
fi

[ ${#steps_failed[@]} = 0 ] || printf 'failed: %s\n' "${steps_failed[@]}"
echo "$passed passed, $failed failed"
[ ${#steps_failed[@]} = 0 ]
