#!/bin/bash
# run.sh: serves a RAM namespace of SIZE (1GiB) on TCP and RDMA, port PORT (4420) of ADDRESS (0.0.0.0,
# which means all), with the binary of scripts/build.sh. For trying out: every host may connect.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
address=${ADDRESS:-0.0.0.0} port=${PORT:-4420} size=${SIZE:-1GiB}
config=bin/run.yaml
{
  echo "# Made by make run ADDRESS=$address PORT=$port SIZE=$size"
  echo "listeners:"
  echo "  - {transport: tcp, address: \"$address\", port: $port, on_unavailable: fail}"
  echo "  - {transport: rdma, address: \"$address\", port: $port}"
  cat <<YAML
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:demo
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: ram, size: $size}
YAML
} >"$config"
bin/nvmf-target check "$config" >&2 ||
  die "$config is made of ADDRESS=$address, PORT=$port and SIZE=$size: make run SIZE=64MiB changes one"
case $address in
  127.* | ::1) ;;
  *)
    echo "WARNING: everybody who reaches $address may read and write the namespace." \
      "make run ADDRESS=127.0.0.1 serves this machine only." >&2
    ;;
esac
cat >&2 <<TEXT
ADDRESS=$address PORT=$port SIZE=$size can be changed: make run PORT=4421.
On a host: modprobe -a nvme-tcp nvme-rdma, then one of the commands below.
Ctrl-C stops the target.
TEXT
ulimit -l unlimited 2>/dev/null || true # RDMA registers memory
exec bin/nvmf-target serve "$config"
