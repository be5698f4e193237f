# apt.sh: for scripts that source it. apt_install PACKAGE... installs the missing ones of some
# Debian packages, as root or through sudo, and shows the progress.
# shellcheck shell=bash
apt_install() {
  local p missing=() as_root=()
  for p; do
    case $(dpkg-query -W -f '${Status}' "$p" 2>/dev/null) in
      *" installed") ;;
      *) missing+=("$p") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
      echo "these packages are missing: ${missing[*]}. Run this as root, or install sudo" >&2
      return 1
    }
    as_root=(sudo)
  fi
  echo "installing: ${missing[*]}" >&2
  # The question of tshark, whether other users may capture, gets its default answer: no.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q
    -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  # The first attempt fails if the lists of packages are missing or old.
  (set -o pipefail; "${install[@]}" 2>/dev/null | apt_progress) || (
    set -eo pipefail
    "${apt[@]}" -qq update
    "${install[@]}" | apt_progress
  )
}

# apt_progress prints the progress, every 20 packages.
apt_progress() {
  awk '
    / newly installed,/ { all = $1 + $3 }
    /^Need to get / { print "  " $0 }
    /^Get:/ && ++got % 20 == 0 { print "  fetched " got " of " all; fflush() }
    /^Setting up / && ++set % 20 == 0 { print "  installed " set " of " all; fflush() }
  ' >&2
}
