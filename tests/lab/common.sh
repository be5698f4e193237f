# Sourced by the scripts that run on the machine itself (not inside the lab's kernels).
lab=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
cache=${NVMF_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvmf-target/lab}
mkdir -p "$cache"

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# need COMMAND...: fails naming every command that is missing.
need() {
  local c missing=
  for c; do command -v "$c" >/dev/null || missing="$missing $c"; done
  [ -z "$missing" ] || die "missing:$missing (install with $lab/install.sh)"
}

# target_binary BIN DIR: the path of BIN, or, if that is empty, of a target built from this tree into DIR.
target_binary() {
  local bin=$1
  if [ -z "$bin" ]; then
    need go
    bin=$2/nvmf-target
    (cd "$lab/../.." && CGO_ENABLED=1 go build -o "$bin" ./cmd/nvmf-target)
  fi
  readlink -f "$bin"
}

# digest FILE... -- STRING...: a short hash of the inputs of something cached.
digest() {
  local files=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do files+=("$1"); shift; done
  { cat "${files[@]}"; echo "$@"; } | sha256sum | cut -c1-12
}

# mirror_of PATTERN DEFAULT: the address of this machine's package source that matches PATTERN.
mirror_of() {
  local found
  found=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -E "$1" | head -n1) || true
  echo "${found:-$2}"
}

# private_apt SUITES DIR: makes DIR a complete apt state of its own, for SUITES on the mirror this machine uses, and updates it. The
# machine's sources are neither read beyond the mirror's address nor changed. After it, apt-get "${APT[@]}" works on that state.
private_apt() {
  local suites=$1 dir=$2 suite mirror
  mirror=$(mirror_of '/debian/?$' http://deb.debian.org/debian)
  mkdir -p "$dir"/{lists/partial,cache/archives/partial,etc}
  for suite in $suites; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done >"$dir/etc/sources.list"
  APT=(-qq -o Dir::Etc::SourceList="$dir/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$dir/lists"
       -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3)
  apt-get "${APT[@]}" update
}
