#!/bin/bash
# show-broken.sh: prints the output of "nvmf-target check" for every broken configuration of the
# tests.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
for file in config/testdata/broken/*.yaml; do
  echo "\$ nvmf-target check --config $file"
  rc=0
  bin/nvmf-target check --config "$file" || rc=$?
  printf 'exit code %d\n\n' $rc
  [ $rc != 0 ] || die "$file was accepted"
done
