# ext4 and xfs: made, mounted, filled, checked, and the files are the same after a new connection.
# variants: rxe siw tcp
# soak: soft
# covers: backend/file backend/ram nvme/target
# limit: 400
. "$LAB_DIR/lib.sh"
disk_up
NAMESPACES=(1:ram:512MiB 2:file:512MiB:/run/disk/2.img:4096)
lab_up; target_start; host_connect
mkdir -p /tmp/fs /tmp/src
head -c 40M /dev/urandom >/tmp/src/large
for i in $(seq 200); do head -c $((i * 97)) /dev/urandom >/tmp/src/small$i; done
(cd /tmp/src && sha256sum ./*) >/tmp/sums
check() { # DEVICE
  case $fs in ext4) e2fsck -fn "$1" ;; xfs) xfs_repair -n "$1" ;; esac >/tmp/check 2>&1 ||
    { cat /tmp/check; fail "$fs on namespace $nsid is damaged"; }
}

for fs in ext4 xfs; do
  for nsid in 1 2; do
    dev=$(namespace_device $nsid)
    say "$fs on namespace $nsid ($dev)"
    case $fs in ext4) mkfs.ext4 -q -F "$dev" ;; xfs) mkfs.xfs -q -f "$dev" ;; esac
    mount "$dev" /tmp/fs; cp /tmp/src/* /tmp/fs/; sync
    rm /tmp/fs/small1*; fstrim /tmp/fs || say "fstrim: not supported"
    cp /tmp/src/small1* /tmp/fs/; umount /tmp/fs
    check "$dev"
  done
  host_disconnect; host_connect
  for nsid in 1 2; do
    dev=$(namespace_device $nsid)
    mount "$dev" /tmp/fs
    (cd /tmp/fs && sha256sum --quiet -c /tmp/sums) || fail "$fs on namespace $nsid: files differ"
    umount /tmp/fs; check "$dev"
  done
done
host_disconnect
klog_check
