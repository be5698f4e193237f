#!/bin/sh
# After unpacking. dpkg: configure [OLD_VERSION]; rpm: 1, or 2 after an upgrade.
set -e
case $1 in configure | 1 | 2) ;; *) exit 0 ;; esac
systemd-sysusers nvmf-target.conf
systemd-tmpfiles --create nvmf-target.conf || true # a chroot without /proc; a boot does it
[ -d /run/systemd/system ] || exit 0 # a chroot or a container
systemctl daemon-reload
# The first installation starts nothing, because nothing is configured. An upgrade restarts the
# running target, unless the new version refuses the configuration; then the old one goes on.
systemctl -q is-active nvmf-target || exit 0
# The configuration may name credentials, which systemd keeps there while the unit runs.
export CREDENTIALS_DIRECTORY=/run/credentials/nvmf-target.service
if /usr/bin/nvmf-target check; then
  systemctl try-restart nvmf-target || echo "nvmf-target: see systemctl status nvmf-target" >&2
else
  echo "nvmf-target: the previous version goes on, because this one refuses the configuration" \
    "above. Correct it, then: systemctl restart nvmf-target" >&2
fi
