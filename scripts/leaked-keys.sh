#!/bin/bash
# leaked-keys.sh KEYS LOG...: fails if a log has a key that tests have recorded in KEYS
# (testutil.Secret). It names the log, the running test, and the test of the key, but not the key.
set -euo pipefail
keys=$1; shift
[ -s "$keys" ] || { echo "no test has noted a key in $keys"; exit 1; }
forms=$(mktemp); trap 'rm -f "$forms"' EXIT
cut -f1 "$keys" | sort -u >"$forms"
rc=0
for log; do
  while IFS=: read -r line form; do
    rc=1
    test=$(head -n "$line" "$log" | awk '/^=== (RUN|NAME|CONT)/ {test = $3} END {print test}')
    owner=$(awk -F'\t' -v form="$form" '$1 == form {print $2; exit}' "$keys")
    echo "$log:$line has a key of ${owner##*/}${test:+, printed by $test}"
  done < <(grep -aonF -f "$forms" "$log" || true)
done
exit $rc
