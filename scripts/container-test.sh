#!/bin/bash
# container-test.sh ROOT PROGRAM: runs PROGRAM in a container as the image does, as root or through
# sudo: runc, the seccomp profile, user 65532 without capabilities, and the Debian in the directory
# ROOT, which has the libraries of the image and stays read-only. A host connects over TCP and reads
# a file. Building the image itself takes a registry of images.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
root=$1 program=$2 name=nvmf-target-$$
work=$(mktemp -d) runner=""
as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo)
container() { "${as_root[@]}" runc --root "$work/runc" "$@"; }
end() {
  container delete --force "$name" 2>/dev/null || true
  [ -z "$runner" ] || wait "$runner" || true
  "${as_root[@]}" rm -rf "$work"
}
trap end EXIT

nqn=nqn.2026-11.io.nvmf-target:container
mkdir "$work/data" "$work/etc"
chmod 755 "$work"
"${as_root[@]}" chown 65532:65532 "$work/data"
sed -e 's/address: 0.0.0.0/address: 127.0.0.1, port: 0/' -e 's/hosts: \[.*/allow_any_host: true/' \
  -e 's/10GiB/64MiB/' packaging/container/nvmf-target.yaml >"$work/etc/nvmf-target.yaml"
printf 'disks: {engine: io_uring}\ntcp: {max_connections: 64}\n' >>"$work/etc/nvmf-target.yaml"
"${as_root[@]}" install -m 755 "$program" "$root/usr/bin/nvmf-target"
"${as_root[@]}" mkdir -p "$root/etc/nvmf-target" "$root/var/lib/nvmf-target" "$root/run/nvmf-target"

# What compose.yaml and the Containerfile say, for runc.
runc spec --bundle "$work"
jq --arg root "$root" --arg work "$work" --slurpfile seccomp packaging/container/seccomp.json '
  .root = {path: $root, readonly: true}
  | .process += {terminal: false, user: {uid: 65532, gid: 65532}, capabilities: {},
      noNewPrivileges: true, args: ["/usr/bin/nvmf-target", "serve"],
      env: ["PATH=/usr/bin", "STATE_DIRECTORY=/var/lib/nvmf-target",
        "RUNTIME_DIRECTORY=/run/nvmf-target"]}
  | .linux.seccomp = $seccomp[0]
  | .linux.namespaces |= map(select(.type | IN("pid", "mount", "ipc", "uts")))
  | .mounts |= map(select(.type | IN("sysfs", "cgroup") | not))
  | .mounts += [
      {destination: "/sys", type: "none", source: "/sys", options: ["rbind", "ro"]},
      {destination: "/run/nvmf-target", type: "tmpfs", source: "tmpfs",
        options: ["nosuid", "mode=0700", "uid=65532", "gid=65532"]},
      {destination: "/etc/nvmf-target", type: "none", source: ($work + "/etc"),
        options: ["bind", "ro"]},
      {destination: "/var/lib/nvmf-target", type: "none", source: ($work + "/data"),
        options: ["bind", "rw"]}]' "$work/config.json" >"$work/config.new"
mv "$work/config.new" "$work/config.json"

fail() { cat "$work/log" >&2; die "$*"; }
container run --bundle "$work" "$name" >"$work/log" 2>&1 &
runner=$!
for _ in $(seq 100); do
  port=$(sed -n 's/.*on tcp 127.0.0.1:\([0-9]*\)$/\1/p' "$work/log")
  [ -z "$port" ] || break
  kill -0 "$runner" 2>/dev/null || fail "it does not start"
  sleep 0.1
done
[ -n "$port" ] || fail "it does not serve"
container exec --user 65532:65532 "$name" nvmf-target status ||
  fail "it does not say that it is well"
go run ./tests/bench -rounds 1 -duration 1s -client-cpu -1 -run '^4K random read QD 32$' \
  -attach "tcp:127.0.0.1:$port" -nqn $nqn || fail "a host cannot read"
pid=$(container state "$name" | jq .pid)
[ "$(grep -cE '^(Seccomp:.2|NoNewPrivs:.1|CapEff:.0{16})$' "/proc/$pid/status")" = 3 ] ||
  fail "it is not confined as the profile says"
container kill "$name" TERM
wait "$runner" || fail "it does not stop with code 0"
runner=""
[ -e "$work/data/disk0.img" ] || fail "there is no file"
# The limit of locked memory is that of this machine.
! grep -E 'level=(WARN|ERROR)' "$work/log" | grep -v "registered with io_uring" ||
  die "warnings: see above"
