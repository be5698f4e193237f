#!/bin/bash
# package-test.sh [install|all]: builds the packages and checks their content. With "install" it
# also installs, upgrades and removes the .deb in a clean Debian 12, as root or through sudo. With
# "all" it does the same with the .rpm, runs the program in a container, builds the packages again
# in another directory, with nothing cached, and compares the bytes. The Debian is made once (half a
# minute to five) and cached.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "$(readlink -f "$0")")/env.sh"
find_go || die "no Go found: run make deps"
what=${1:-contents}
case $what in contents | install | all) ;; *) die "usage: package-test.sh [install|all]" ;; esac
work=$(mktemp -d)
as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo)
trap '"${as_root[@]}" rm -rf "$work"' EXIT
say() { echo "package-test: $*"; }

scripts/package.sh >/dev/null
deb=$(echo bin/package/nvmf-target_*.deb) rpm=$(echo bin/package/nvmf-target-[0-9]*.rpm)
host=$(echo bin/package/nvmf-target-host_*.deb)

say "contents"
# zsh completions have different places in Debian and elsewhere.
dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n 's/^\.\(.*[^/]\)$/\1/p' | sort >"$work/deb"
rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$rpm" |
  sed -n 's/^-[^ ]* //; s/site-functions/vendor-completions/; /^\//p' | sort >"$work/rpm"
diff "$work/deb" "$work/rpm" || die "the .deb and the .rpm have different files"
for f in /usr/bin/nvmf-target /usr/lib/systemd/system/nvmf-target.service \
  /usr/share/nvmf-target/schema.json /usr/share/nvmf-target/apparmor /usr/share/man/man1/nvmf-target-serve.1.gz \
  /usr/share/bash-completion/completions/nvmf-target; do
  grep -qx "$f" "$work/deb" || die "$f is missing"
done
# Debian 13's abstractions are for a newer ABI than the profile, which Debian 12 loads as well.
apparmor_parser --skip-kernel-load --skip-cache --kernel-features=/etc/apparmor.d/abi/3.0 \
  --warn=all --warn=no-abi --Werror packaging/apparmor/nvmf-target ||
  die "packaging/apparmor/nvmf-target does not load: $(apparmor_parser --version | head -n 1)"
for p in "$deb" "$host"; do dpkg-deb -x "$p" "$work/files"; done
[ "$(dpkg-deb -I "$deb" conffiles)" = /etc/nvmf-target/nvmf-target.yaml ] || die "conffiles of $deb"
[ "$(rpm -qp --configfiles "$rpm")" = /etc/nvmf-target/nvmf-target.yaml ] || die "those of $rpm"
version=$(dpkg-deb -f "$deb" Version)
[ "$(rpm -qp --qf '%{VERSION}' "$rpm")" = "$version" ] || die "the versions differ"
"$work/files/usr/bin/nvmf-target" version | grep -F "$version" ||
  die "the program does not say $version"
"$work/files/usr/bin/nvmf-target" check -c "$work/files/etc/nvmf-target/nvmf-target.yaml"
# Links in the documents lead to files of the package, or to the source.
documents=$work/files/usr/share/doc/nvmf-target links=0
while IFS=: read -r page to; do
  links=$((links + 1))
  [ -e "$documents/$to" ] || die "${page##*/} links to $to, which is not in $deb"
done < <(grep -HoE '\]\([^) ]+\)' "$documents"/*.md | sed 's/\](\([^#)]*\).*/\1/' |
  grep -v -e :// -e ':$' | sort -u)
[ $links -ge 50 ] || die "$deb has only $links links in its documents"
# The packages require the libraries that the program needs. Debian 13 has renamed libraries with
# times in their interface; the new packages provide the old names.
mkdir -p "$work/shlibs/debian" && printf 'Source: x\n\nPackage: x\nArchitecture: any\n' >"$work/shlibs/debian/control"
needs=$(cd "$work/shlibs" && dpkg-shlibdeps -O "-e$work/files/usr/bin/nvmf-target" 2>/dev/null |
  sed 's/t64 / /g')
dpkg-deb -f "$deb" Depends | grep -qF "${needs#shlibs:Depends=}" ||
  die "packaging/nfpm.yaml must have, in depends of deb: ${needs#*=}"
for lib in libc.so.6 libcrypto.so.3 libibverbs.so.1 librdmacm.so.1 libssl.so.3; do
  newest=$(objdump -p "$work/files/usr/bin/nvmf-target" | awk -v lib="$lib:" '
    /required from/ {on = $3 == lib} on && NF == 4 {print $4}' | sort -V | tail -n1)
  rpm -qp --requires "$rpm" | grep -qxF "$lib($newest)(64bit)" ||
    die "packaging/nfpm.yaml must have, in depends of rpm: $lib($newest)(64bit)"
done
jq -e '.components | length > 10' bin/package/*.cdx.json >/dev/null || die "the SBOM is empty"
[ "$what" != contents ] || { say "passed, without an installation"; exit 0; }

say "a clean Debian 12"
packages=systemd,udev,libibverbs1,librdmacm1,libssl3 variant=essential
tarball=$cache/package-root-$(echo "$variant $packages" | sha256sum | cut -c1-12).tar
if [ ! -e "$tarball" ]; then
  mkdir -p "$cache"
  (
    . tests/lab/common.sh
    "${as_root[@]}" mmdebstrap --quiet --format=tar --variant=$variant --include=$packages \
      --aptopt='APT::Install-Recommends "false"' bookworm "$tarball.new" \
      "$(mirror_of '/debian/?$' http://deb.debian.org/debian)"
  )
  "${as_root[@]}" mv "$tarball.new" "$tarball"
fi
new_root() { root=$work/$1; mkdir "$root"; "${as_root[@]}" tar -x -C "$root" -f "$tarball"; }

new_root debian
inside() {
  "${as_root[@]}" env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin unshare --mount --pid --fork \
    --root="$root" --mount-proc "$@"
}
fail() { "${as_root[@]}" cat "$root/systemctl" >&2 || true; die "$*"; }
C=/etc/nvmf-target/nvmf-target.yaml D=/var/lib/nvmf-target

# An older version with another configuration.
dpkg-deb -R "$deb" "$work/old"
sed -i 's/^Version: .*/Version: 0.0.1/' "$work/old/DEBIAN/control"
sed -i 's/64MiB/32MiB/' "$work/old$C"
old=$(grep -c 32MiB "$work/old$C")
dpkg-deb --root-owner-group -b "$work/old" "$work/old.deb" >/dev/null
"${as_root[@]}" cp "$work/old.deb" "$root/old.deb"
"${as_root[@]}" cp "$deb" "$root/new.deb"
"${as_root[@]}" cp "$host" "$root/host.deb"

say "install"
inside dpkg -i /old.deb >/dev/null 2>&1 || fail "it cannot be installed"
[ "$(inside stat -c '%a %U:%G' $C)" = "640 root:nvmf-target" ] || fail "rights of $C"
[ "$(inside stat -c '%a %U:%G' $D)" = "755 nvmf-target:nvmf-target" ] || fail "rights of $D"
inside setpriv --reuid=nvmf-target --regid=nvmf-target --clear-groups nvmf-target check
inside systemd-analyze verify nvmf-target.service 2>&1 | tee "$work/verify"
[ ! -s "$work/verify" ] || fail "systemd-analyze verify reports problems"
inside systemd-analyze security --offline=true --no-pager --threshold=20 nvmf-target.service |
  tail -n1 || fail "systemd-analyze security says more than 2.0"
inside dpkg -i /host.deb >/dev/null
inside sh -c "echo data >$D/disk0.img; echo {} >$D/state; mkdir $D/managed"

# systemd does not run here; this systemctl records its arguments.
fake_systemctl() {
  inside sh -c 'mkdir -p /run/systemd/system
    printf "#!/bin/sh\necho \"\$@\" >>/systemctl\n" >/usr/bin/systemctl.new
    chmod 755 /usr/bin/systemctl.new; mv /usr/bin/systemctl.new /usr/bin/systemctl'
}
fake_systemctl
told() { "${as_root[@]}" grep -qx "$1" "$root/systemctl"; }

say "upgrade: a configuration that was not edited is replaced, and what runs is restarted"
inside dpkg -i /new.deb >/dev/null
inside grep -q 64MiB $C || fail "$C is the old one"
told "try-restart nvmf-target" || fail "no restart"
! told "disable.*" || fail "an upgrade disables the unit"

say "upgrade: an edited one stays, and one with an error stops nothing"
inside dpkg -i --force-downgrade --force-confnew /old.deb >/dev/null 2>&1
[ "$(inside grep -c 32MiB $C)" = "$old" ] || fail "the old configuration is not back"
inside sed -i 's/^subsystems:/subsystem:/' $C
inside rm /systemctl
inside dpkg -i --force-confold /new.deb >"$work/out" 2>&1 || fail "no upgrade: $(cat "$work/out")"
inside grep -q ^subsystem: $C || fail "an edited configuration was replaced"
! told "try-restart nvmf-target" || fail "it was restarted with a configuration that is wrong"
grep -q "the previous version goes on" "$work/out" || fail "it does not say so"
inside dpkg --verify nvmf-target | grep -v " c $C$" && fail "installed files differ"

say "remove, purge: never data"
inside dpkg -r nvmf-target >/dev/null
told "disable --now nvmf-target" || fail "remove does not stop the unit"
inside test -e $C -a -e $D/state -a -e $D/disk0.img || fail "remove deleted too much"
inside dpkg -P nvmf-target >/dev/null 2>&1
inside test ! -e $C -a ! -e $D/state || fail "purge left configuration or state"
inside test -d $D/managed || fail "purge deleted objects"
[ "$(inside cat $D/disk0.img)" = data ] || fail "purge deleted data"
inside find / -xdev -path /proc -prune -o -name '*nvmf-target*' -print |
  grep -vE "^$D|^/usr/(lib/udev|share/doc/nvmf-target-host)|^/var/lib/dpkg/info/nvmf-target-host" &&
  fail "purge left these files"

# shellcheck disable=SC2031  # changed in a subshell above
[ "$what" = all ] || { say "passed: the .deb in a clean Debian"; exit 0; }

say "a container"
# shellcheck disable=SC2031
image=$cache/image-root-$(sha256sum scripts/image-root.sh | cut -c1-12).tar
mkdir "$work/image"
if [ -e "$image" ]; then
  "${as_root[@]}" tar -x -C "$work/image" -f "$image"
else
  "${as_root[@]}" scripts/image-root.sh "$work/image"
  "${as_root[@]}" tar -c -C "$work/image" . >"$image.new"
  mv "$image.new" "$image"
fi
scripts/container-test.sh "$work/image" "$work/files/usr/bin/nvmf-target"

say "the same bytes from another directory, with another umask, time zone and cache"
mkdir -p "$work/elsewhere/tree"
tar -c --exclude=./bin . | tar -x -C "$work/elsewhere/tree"
(umask 077; cd "$work/elsewhere/tree"
  TZ=Asia/Tokyo LC_ALL=C GOCACHE=$work/gocache scripts/package.sh >/dev/null)
diff -r bin/package "$work/elsewhere/tree/bin/package" || die "two builds differ"
sha256sum bin/package/*
# The next version, for an upgrade of the .rpm.
(cd "$work/elsewhere/tree"
  sed -i '0,/^## /s/^## .*/## 99.0.0/' CHANGELOG.md
  GOCACHE=$work/gocache scripts/package.sh >/dev/null)
next=$(echo "$work"/elsewhere/tree/bin/package/nvmf-target-99*.rpm)

say "the .rpm: install, upgrade, remove"
new_root rpm-root
fake_systemctl
in_rpm() {
  # shellcheck disable=SC2016
  "${as_root[@]}" unshare --mount sh -c 'mount -t proc proc "$0/proc" &&
    exec rpm --root "$0" --force-debian "$@"' "$root" "$@"
}
in_rpm --nodeps -i "$PWD/$rpm" || fail "$rpm cannot be installed"
[ "$(inside stat -c '%a %U:%G' $C)" = "640 root:nvmf-target" ] || fail "rights of $C"
in_rpm --nodeps -V nvmf-target | grep -v " c $C$" && fail "installed files differ"
inside setpriv --reuid=nvmf-target --regid=nvmf-target --clear-groups nvmf-target check
inside sh -c "echo data >$D/disk0.img; echo '# edited' >>$C; rm -f /systemctl"
in_rpm --nodeps -U "$next" || fail "$next is not an upgrade"
[ "$(in_rpm -q --qf '%{VERSION}' nvmf-target | cut -c1-2)" = 99 ] || fail "it is the old version"
inside grep -q '# edited' $C || fail "an edited configuration was replaced"
told "try-restart nvmf-target" || fail "no restart"
! told "disable.*" || fail "an upgrade disables the unit"
in_rpm --nodeps -e nvmf-target
told "disable --now nvmf-target" || fail "the unit is not stopped"
inside test ! -e /usr/bin/nvmf-target -a -e $C.rpmsave || fail "program or configuration"
[ "$(inside cat $D/disk0.img)" = data ] || fail "removal deleted data"
rpm -qp --requires --recommends "$rpm"
say "all passed"
