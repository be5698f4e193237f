#!/bin/bash
# container-test.sh ROOT PROGRAM: runs PROGRAM in a container like the image, as root or through
# sudo: runc, the seccomp profile, user 65532 without capabilities, and the output of
# scripts/image-root.sh in the directory ROOT, which stays read-only. The libraries of all RDMA
# devices load, and a host reads over TCP and TLS. Building the image itself would need a registry
# of images.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
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
host=nqn.2014-08.org.nvmexpress:uuid:5b2f8a1c-93d4-4c0e-8f6a-0d7e1b3c9a42
mkdir "$work/data" "$work/etc"
chmod 755 "$work"
"${as_root[@]}" chown 65532:65532 "$work/data"
(umask 077; "$program" key gen --tls >"$work/key")
"${as_root[@]}" install -o 65532 -m 400 "$work/key" "$work/etc/key"
sed -e 's/address: 0.0.0.0/address: 127.0.0.1, port: 0/' -e 's/10GiB/64MiB/' \
  -e "s/hosts: .*/hosts: [$host]/" \
  packaging/container/nvmf-target.yaml >"$work/etc/nvmf-target.yaml"
sed -i '/^listeners:/a\  - {transport: tcp, address: 127.0.0.1, port: 0, tls: required}' \
  "$work/etc/nvmf-target.yaml"
cat >>"$work/etc/nvmf-target.yaml" <<EOF
hosts: [{nqn: "$host", tls_key_file: key}]
disks: {engine: io_uring}
tcp: {max_connections: 64}
EOF
"${as_root[@]}" install -m 755 "$program" "$root/usr/bin/nvmf-target"

# The settings of compose.yaml and the Containerfile, for runc.
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
  mapfile -t ports < <(sed -n 's/.* -t tcp -a 127.0.0.1 -s \([0-9]*\) .*/\1/p' "$work/log")
  [ ${#ports[@]} != 2 ] || break
  kill -0 "$runner" 2>/dev/null || fail "it does not start"
  sleep 0.1
done
[ ${#ports[@]} = 2 ] || fail "it does not serve"
inside() { container exec --user 65532:65532 "$name" "$@"; }
inside nvmf-target status || fail "it does not say that it is well"
! inside sh -c : 2>/dev/null || fail "there is a shell"
# rdma-core loads the library of a device by the name in a file.
loader=$(cd "$root" && echo usr/lib*/ld-linux-*.so.*) drivers=0
for driver in "$root"/etc/libibverbs.d/*.driver; do
  library=$(cd "$root" && echo usr/lib/*/libibverbs/lib"$(awk '{print $2}' "$driver")"-rdmav*.so)
  needs=$(inside "/$loader" --list "/$library") || fail "$library does not load"
  ! grep "not found" <<<"$needs" || fail "$library lacks libraries"
  drivers=$((drivers + 1))
done
[ $drivers -ge 10 ] || fail "RDMA devices lack libraries"
bench() { # PORT OPTION...
  "$program" bench --address "127.0.0.1:$1" --subsystem $nqn --host-nqn $host --runtime 1s "${@:2}"
}
bench "${ports[0]}" --tls-key-file "$work/key" || fail "a host cannot read over TLS"
bench "${ports[1]}" || fail "a host cannot read over TCP"
pid=$(container state "$name" | jq .pid)
[ "$(grep -cE '^(Seccomp:.2|NoNewPrivs:.1|CapEff:.0{16})$' "/proc/$pid/status")" = 3 ] ||
  fail "it is not confined as the profile says"
container kill "$name" TERM
wait "$runner" || fail "it does not stop with code 0"
runner=""
[ -e "$work/data/disk0.img" ] || fail "there is no file"
# The limit of locked memory is the one of this machine.
! grep -E 'level=(WARN|ERROR)' "$work/log" | grep -v "registered with io_uring" ||
  die "warnings: see above"
