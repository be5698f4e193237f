#!/bin/sh
# After files are removed. A purge removes the state file and nothing else below
# /var/lib/nvmf-target. The rest is data, promises to hosts about it, and objects created by
# orchestrators. The user stays as their owner.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
[ "$1" = purge ] || exit 0
rm -f /var/lib/nvmf-target/state /var/lib/nvmf-target/state.new
rmdir --ignore-fail-on-non-empty /var/lib/nvmf-target 2>/dev/null || true
