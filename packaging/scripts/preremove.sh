#!/bin/sh
# Before files are removed. dpkg: remove, or upgrade; rpm: 0, or 1 before an upgrade.
set -e
case $1 in remove | 0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
  systemctl disable --now nvmf-target
else
  systemctl disable nvmf-target 2>/dev/null || true
fi
