# Sourced by the scripts that run on the machine itself, not inside the lab's kernels.
lab=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
cache=${NVMF_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvmf-target/lab}
mkdir -p "$cache"

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# need COMMAND...: fails and names every command that is missing.
need() {
  local c missing=
  for c; do command -v "$c" >/dev/null || missing="$missing $c"; done
  [ -z "$missing" ] || die "missing:$missing (install with $lab/install.sh)"
}

# target_binary BIN DIR: prints the path of BIN; without BIN it builds the target of this tree into
# DIR and prints its path.
target_binary() {
  local bin=$1
  if [ -z "$bin" ]; then
    CGO_ENABLED=1 "$lab/../../scripts/build.sh" "$2" >&2
    bin=$2/nvmf-target
  fi
  readlink -f "$bin"
}

# progress WHAT LINES: reads lines, about LINES of them, and shows the share that has arrived and
# the remaining time: on a terminal in place, elsewhere one line for every tenth.
progress() {
  local what=$1 lines=$2 n=0 percent shown=0 begin=$SECONDS every=10 end='\n'
  [ ! -t 2 ] || every=1 end='   \r'
  while read -r _; do
    n=$((n + 1)) percent=$((100 * n / lines))
    if [ $percent -lt $((shown + every)) ] || [ $percent -gt 99 ]; then continue; fi
    shown=$percent
    # shellcheck disable=SC2059  # $end is an escape sequence
    printf "%s: %d %%, %s left$end" "$what" $percent \
      "$(duration $(((SECONDS - begin) * (100 - percent) / percent)))" >&2
  done
}
# duration SECONDS: prints about how long that is.
duration() {
  if [ "$1" -lt 100 ]; then echo "about $1 s"; else echo "about $((($1 + 30) / 60)) min"; fi
}

# digest FILE... -- STRING...: prints a short hash of the inputs of a cached file.
digest() {
  local files=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do files+=("$1"); shift; done
  { cat "${files[@]}"; echo "$@"; } | sha256sum | cut -c1-12
}

# mirror_of PATTERN DEFAULT: prints the address of this machine's package source that matches
# PATTERN.
mirror_of() {
  local found
  found=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    grep -E "$1" | head -n1) || true
  echo "${found:-$2}"
}

# private_apt SUITES DIR: creates an apt state of its own in DIR, for SUITES on the mirror of this
# machine, and updates it. Of the machine's own sources only the addresses of the mirrors are used,
# and nothing counts as installed: an installed version may be in none of SUITES. Afterwards
# apt-get "${APT[@]}" works on that state.
private_apt() {
  local suites=$1 dir=$2 suite mirror
  mkdir -p "$dir"/{lists/partial,cache/archives/partial,etc}
  for suite in $suites; do
    case $suite in
      *-security) mirror=$(mirror_of '/debian-security/?$' http://deb.debian.org/debian-security) ;;
      *) mirror=$(mirror_of '/debian/?$' http://deb.debian.org/debian) ;;
    esac
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done >"$dir/etc/sources.list"
  APT=(-qq -o Dir::Etc::SourceList="$dir/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$dir/lists" -o Dir::State::Status=/dev/null -o Dir::Cache="$dir/cache"
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3)
  apt-get "${APT[@]}" update
}

# filter leaves boot messages out.
filter() {
  sed -u -e 's/\r//;s/\x1bc\x1b\[?7l\x1b\[2J//;s/\x1b\[0mSeaBIOS.*//;s/^Booting from ROM\.\.//' \
    -e 's/\x1bc\x1b\[?7l\x1b\[2J//;/^Core dump limits/d;/^\t\(soft\|hard\) -/d;/^Checking /d' \
    -e '/^lab: end/d;/^== target/d;/^\[ *[0-9.]*\] /d;/^$/d'
}
