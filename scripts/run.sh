#!/bin/bash
# run.sh: serves a RAM namespace on TCP port 4420 of all addresses, and on RDMA if there is a
# device, with the binary of scripts/build.sh. For trying out: every host may connect. PORT and SIZE
# (1GiB) may be set.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
port=${PORT:-4420} size=${SIZE:-1GiB}
config=$(mktemp -t nvmf-target-XXXXXX.yaml)
{
  echo "listeners:"
  echo "  - {transport: tcp, address: 0.0.0.0, port: $port, on_unavailable: fail}"
  if [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
    echo "  - {transport: rdma, address: 0.0.0.0, port: $port}"
  fi
  cat <<YAML
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:demo
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: ram, size: $size}
YAML
} >"$config"
echo "configuration: $config" >&2
echo "On a host: modprobe -a nvme-tcp nvme-rdma, then one of the commands below." >&2
echo "Ctrl-C stops the target." >&2
ulimit -l unlimited 2>/dev/null || true # RDMA registers memory
exec bin/nvmf-target serve --config "$config"
