# Inside a kernel of the lab: the commands that a user would type, and their output.
. "$LAB_DIR/lib.sh"
disk_up
NAMESPACES=(1:ram:1GiB 2:file:1GiB:/run/disk/disk0.img:4096)
step() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
show() { printf '\033[36m$ %s\033[0m\n' "$*"; }
type_() { show "$*"; "$@"; }
lab_up

if [ $LINK = soft ]; then
  step "The RDMA device of the host: soft RoCE. The target's end of the virtual cable has none"
else
  step "The RDMA devices: soft RoCE on both ends of a virtual cable, the target's and the host's"
fi
type_ rdma link show

step "The target's configuration, and the target"
target_config | sed 's/^/  /'
target_start
if [ "$TARGET" = ours ]; then
  show nvmf-target serve --config target.yaml
  head -n 12 /run/target.log
fi

step "A Linux host discovers it"
type_ nvme discover -t $TRTYPE -a $ADDR -s $PORT | grep -E '^(trtype|subtype|subnqn|traddr|trsvcid)'

step "connects"
show nvme connect -t $TRTYPE -a $ADDR -s $PORT -n $NQN
host_connect
type_ nvme list

step "makes a file system on the file namespace, mounts it, and writes to it"
disk=$(namespace_device 2); mkdir -p /tmp/mnt
type_ mkfs.ext4 -q "$disk"
type_ mount "$disk" /tmp/mnt
type_ cp -r /usr/share/perl5 /tmp/mnt/
type_ df -h /tmp/mnt
type_ umount /tmp/mnt
type_ e2fsck -fn "$disk" 2>&1 | tail -n 1

step "and measures the RAM namespace with fio, after a verification with checksums"
DEV=$(namespace_device 1)
fio_verify "verify" --iodepth=32 --bs=4k --size=$([ "$LAB_VM" = qemu ] && echo 4M || echo 32M)
for work in "randread 4k 1" "randread 4k 32" "randwrite 4k 32" "read 128k 16" "write 128k 16"; do
  read -r rw bs depth <<<"$work"
  fio_run m --rw="$rw" --bs="$bs" --iodepth="$depth" --size=128M --time_based --runtime=4 >/dev/null
  jq -r --arg w "$rw $bs, depth $depth" '.jobs[0] |
    (if .read.total_ios > 0 then .read else .write end) |
    "\($w)                              "[0:28] + "\(.iops | floor) IOPS        "[0:16] +
    "\(.bw / 1024 | floor) MiB/s        "[0:14] +
    "p50 \(.clat_ns.percentile["50.000000"] / 1000 | floor) us, " +
    "p99 \(.clat_ns.percentile["99.000000"] / 1000 | floor) us"' /tmp/m.json
done

step "It disconnects; the target stops"
host_disconnect
target_stop
[ "$TARGET" = nvmet ] || tail -n 3 /run/target.log
