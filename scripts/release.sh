#!/bin/bash
# release.sh: builds the files of a release into bin/release: the packages and SBOM of
# scripts/package.sh, an archive of the image for "podman load" and "docker load", and SHA256SUMS.
# HEAD must have the tag of the first heading of CHANGELOG.md, such as v0.1.0; SNAPSHOT=1 builds
# without it.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
release=$(sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -n1)
tagged=$(git tag --points-at HEAD --list "v$release")
[ -n "$tagged${SNAPSHOT:-}" ] ||
  die "HEAD has no tag v$release: tag the commit (git tag -s v$release), or set SNAPSHOT=1"
scripts/package.sh
out=bin/release work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf $out
mkdir -p $out
cp bin/package/* $out/

# The image, as packaging/container/Containerfile describes it, with the program of the package.
dpkg-deb --fsys-tarfile $out/nvmf-target_*.deb | tar -x -C "$work" ./usr/bin/nvmf-target
version=$("$work/usr/bin/nvmf-target" version | awk 'NR == 1 {print $2}')
mkdir "$work/image" "$work/root"
scripts/image-root.sh "$work/root"
install -m 755 "$work/usr/bin/nvmf-target" "$work/root/usr/bin/"
install -m 644 packaging/container/nvmf-target.yaml "$work/root/etc/nvmf-target/"
layer=$work/image/layer.tar
archive() { # OPERATION OWNER PATH...
  tar "$1" -f "$layer" -C "$work/root" --sort=name --mtime="@$(git log -1 --format=%ct)" \
    --owner="$2" --group="$2" --numeric-owner "${@:3}"
}
archive -c 0 --exclude=./var/lib/nvmf-target --exclude=./run/nvmf-target .
archive -r 65532 ./var/lib/nvmf-target ./run/nvmf-target
digest=$(sha256sum <"$layer" | cut -d' ' -f1)
jq -nc --arg arch "$(go env GOARCH)" --arg layer "sha256:$digest" \
  --arg created "$(date -u -d "@$(git log -1 --format=%ct)" +%FT%TZ)" '{
    architecture: $arch, os: "linux", created: $created,
    config: {
      Env: ["PATH=/usr/bin", "STATE_DIRECTORY=/var/lib/nvmf-target",
        "RUNTIME_DIRECTORY=/run/nvmf-target"],
      User: "65532:65532", ExposedPorts: {"4420/tcp": {}}, Volumes: {"/var/lib/nvmf-target": {}},
      Healthcheck: {Test: ["CMD", "nvmf-target", "status"]},
      Entrypoint: ["/usr/bin/nvmf-target"], Cmd: ["serve"]
    },
    rootfs: {type: "layers", diff_ids: [$layer]}
  }' >"$work/image/config.json"
jq -nc --arg tag "nvmf-target:${version//\~/-}" \
  '[{Config: "config.json", RepoTags: [$tag], Layers: ["layer.tar"]}]' >"$work/image/manifest.json"
tar -c -C "$work/image" --mtime="@$(git log -1 --format=%ct)" --owner=0 --group=0 \
  --numeric-owner config.json layer.tar manifest.json | gzip -9n >"$out/nvmf-target_${version}_image.tar.gz"
(cd $out && sha256sum -- * >SHA256SUMS)
ls -l $out
