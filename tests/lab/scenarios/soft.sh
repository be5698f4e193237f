# A Linux host over soft RoCE (rxe) or soft iWARP (siw), and a target that runs as nobody, without capabilities, in a
# network namespace that has no RDMA device: a file system, fio with verification, a bad network, and
# a small MTU.
# variants: soft soft6 softiw softiw6
# smoke: soft softiw
# covers: fabric/rdma fabric/rdma/verbs/soft fabric/rdma/verbs/soft/packet fabric/rdma/verbs/soft/wire fabric/rdma/verbs/soft/engine fabric/rdma/verbs/soft/roce fabric/rdma/verbs/soft/ids fabric/rdma/verbs/soft/cm fabric/rdma/verbs/soft/iwarp fabric/rdma/verbs/soft/mpa
# cpus: 2
# limit: 480
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:256MiB)
lab_up
[ -z "$(on_target rdma link show)" ] || fail "the namespace of the target has an RDMA device"
target_start
grep -q '^Uid:[[:space:]]*65534' "/proc/$TPID/status" || fail "the target does not run as nobody"
grep -q '^CapEff:[[:space:]]*0*$' "/proc/$TPID/status" || fail "the target has capabilities"
host_connect --nr-io-queues=2 --reconnect-delay=1

say "a file system"
mkdir -p /tmp/fs /tmp/src
head -c 20M /dev/urandom >/tmp/src/large
mkfs.ext4 -q -F "$DEV"; mount "$DEV" /tmp/fs; cp /tmp/src/large /tmp/fs/; umount /tmp/fs
host_disconnect; host_connect --nr-io-queues=2 --reconnect-delay=1
mount "$DEV" /tmp/fs; cmp /tmp/src/large /tmp/fs/large || fail "the file differs"; umount /tmp/fs
e2fsck -fn "$DEV" >/tmp/check 2>&1 || { cat /tmp/check; fail "the file system is damaged"; }

say "fio"
fio_verify mixed --iodepth=32 --bsrange=512-1M --bs_unaligned=0 --size=$(sized 16M 32M 128M)
fio_verify 4k --iodepth=32 --bs=4k --size=$(sized 4M 8M 32M) --numjobs=2 --offset_increment=64M
if measuring; then
  fio_verify minute --iodepth=32 --bsrange=4k-128k --size=128M --time_based --runtime=60
fi

say "a bad network"
both() { "$@" dev veth1 root "${NETEM[@]}"; on_target "$@" dev veth0 root "${NETEM[@]}"; }
for fault in "loss 1%" "duplicate 1%" "delay 5ms" "delay 2ms reorder 25% 50%" "corrupt 0.1%"; do
  read -ra NETEM <<<"netem $fault"
  both tc qdisc add
  # Writes that fit into their commands: soft RoCE's host cannot send others again (see badlink.sh).
  fio_run "${fault//[^a-z0-9]/-}" --rw=randwrite --iodepth=16 --bs=4k --size=$(sized 1M 2M 8M)
  NETEM=(); both tc qdisc del
done
fio_verify after --iodepth=16 --bs=4k --size=4M

say "an MTU of 1,500 bytes"
host_disconnect
on_target ip link set veth0 mtu 1500; ip link set veth1 mtu 1500
host_connect --nr-io-queues=2 --reconnect-delay=1
fio_verify mtu1500 --iodepth=32 --bsrange=512-256k --bs_unaligned=0 --size=$(sized 8M 16M 64M)
host_disconnect
# A host over soft RoCE that waits for an acknowledgment for half a second sends again, and ends its
# own connection by that (see badlink.sh). It connects again, and fio notices nothing.
klog_check 'failed with status WR flushed|starting error recovery|no usable path|callbacks suppressed'
target_stop
