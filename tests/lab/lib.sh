# Sourced by every scenario, inside the lab's kernel. Environment:
#   TRANSPORT   rxe, siw or tcp, with a 6 at the end for IPv6 (rxe6); soft is a host over rxe and a
#               target without RDMA device and without privileges, softiw the same with siw
#   TARGET      ours (default) or nvmet: the kernel's own target, for comparison
#   TARGET_BIN  the nvmf-target binary
#   TOPOLOGY    two:  the target has a network namespace of its own at the other end of a veth
#               wire: one namespace, with routes that send the packets of both ends over the veth;
#                     for kernel targets
#               loop: one namespace, no network between host and target
#   SAMPLE      run a sample of a long matrix, chosen by this number; empty: all of it
#   SMOKE       with SAMPLE: run as little as shows that it works at all
set -euE
trap 'echo "FAIL: exit code $? of: $BASH_COMMAND (${BASH_SOURCE[0]##*/}:$LINENO)" >&2' ERR
: "${TRANSPORT:=rxe}" "${TARGET:=ours}" "${TARGET_BIN:=}" "${SAMPLE:=}" "${SMOKE:=}"
: "${LAB_DIR:?}" "${LAB_VM:?}"
NQN=nqn.2026-11.io.nvmf-target:disk0
HOSTID=12345678-0000-4000-8000-00000000000a
HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:$HOSTID
PORT=4420
OUT=/run/out

case $TRANSPORT in *6) FAMILY=6 LINK=${TRANSPORT%6} ;; *) FAMILY=4 LINK=$TRANSPORT ;; esac
SOFT_HOST=rxe SOFT_STACK=
case $LINK in softiw) LINK=soft SOFT_HOST=siw SOFT_STACK='stack: soft-iwarp, ' ;; esac
case $LINK in
  rxe | siw | soft) TRTYPE=rdma ;;
  tcp) TRTYPE=tcp ;;
  *) echo "unknown transport $TRANSPORT"; exit 2 ;;
esac
case $FAMILY in
  4) ADDR=10.0.0.1 HOSTADDR=10.0.0.2 PREFIX=24 ;;
  6) ADDR=fd00::1 HOSTADDR=fd00::2 PREFIX=64 ;;
esac
# The kernel's RDMA hosts and targets use the first network namespace, and before Linux 7 so does
# soft RoCE.
if [ -z "${TOPOLOGY:-}" ]; then
  case $TARGET-$(uname -r)-$LINK in *-soft) TOPOLOGY=two ;; nvmet-* | *-[1-6].*) TOPOLOGY=wire ;; *) TOPOLOGY=two ;; esac
fi

. "$LAB_DIR/lib-target.sh"
. "$LAB_DIR/lib-host.sh"
. "$LAB_DIR/lib-check.sh"
. "$LAB_DIR/lib-state.sh"

say() { printf '%s\n' "== $*"; }
fail() { printf '%s\n' "FAIL: $*" >&2; exit 1; }
skip() { printf '%s\n' "SKIP: $*"; exit 77; }
need() { local c; for c; do command -v "$c" >/dev/null || fail "missing: $c"; done; }
# sample N ITEM...: prints the items, of a sample only N of them, in random order.
sample() {
  local n=$1; shift
  if [ -z "$SAMPLE" ]; then printf '%s\n' "$@"; else
    printf '%s\n' "$@" | awk -v seed="$SAMPLE" 'BEGIN {srand(seed)} {print rand() "\t" $0}' |
      sort | head -n "$n" | cut -f 2
  fi
}
# sized SMOKE SAMPLE FULL: prints the size for this kind of run.
sized() { if measuring; then echo "$3"; elif [ -z "$SMOKE" ]; then echo "$2"; else echo "$1"; fi; }
# measuring reports whether durations and rates count: in full only, where nothing else runs.
measuring() { [ -z "$SAMPLE$SMOKE" ]; }
# copy_function FUNCTION NAME: copies a function, so that it can be redefined and still be called.
copy_function() { eval "$(declare -f "$1" | sed "1s/.*/$2 ()/")"; }

# wait_for SECONDS COMMAND...: waits until COMMAND succeeds. That takes at most SECONDS, and four
# times as long on a busy machine.
wait_for() {
  local limit=$1 end; shift
  end=$((${EPOCHREALTIME/./} + 4 * limit * 1000000))
  until "$@"; do
    [ ${EPOCHREALTIME/./} -lt $end ] || fail "not within $((4 * limit)) s: $*"
    sleep 0.05
  done
}

on_target() {
  if [ $TOPOLOGY = two ]; then nsenter --net=/run/netns/target "$@"; else "$@"; fi
}

# The network: veth0 is the target's, veth1 the host's, with an RDMA device on each unless the
# transport is tcp.
lab_up() {
  if [ $LINK = soft ]; then
    # Only host0 is in the first namespace. The namespace of an earlier scenario goes a little later.
    wait_for 10 rdma system set netns exclusive
    # Soft RoCE's host cannot send everything again (see badlink.sh), so that nothing may be lost.
    RMEM_MAX=$(sysctl -n net.core.rmem_max); sysctl -qw net.core.rmem_max=8388608
  fi
  ip link add veth0 type veth peer name veth1
  if [ $TOPOLOGY = two ]; then
    ip netns add target; ip link set veth0 netns target; on_target ip link set lo up
  fi
  on_target ip link set veth0 mtu 4200 up; ip link set veth1 mtu 4200 up
  on_target ip addr add $ADDR/$PREFIX dev veth0 $(dad)
  [ $TOPOLOGY = loop ] || ip addr add $HOSTADDR/$PREFIX dev veth1 $(dad)
  [ $TOPOLOGY != wire ] || wire_routes
  if [ $TRTYPE = rdma ]; then
    [ $LINK = soft ] || rdma_link target0 veth0 on_target
    [ $TOPOLOGY = loop ] || rdma_link host0 veth1 ""
  fi
  [ $TOPOLOGY = loop ] || wait_for 10 reachable
  klog_mark
}
# Packets to the address of the other end leave by the veth, although both addresses are local.
wire_routes() {
  local f ip="ip -$FAMILY" pair to dev from n=1
  for f in /proc/sys/net/ipv4/conf/{all,veth0,veth1}; do
    echo 1 >$f/accept_local; echo 0 >$f/rp_filter
  done
  $ip rule add pref 100 lookup local; $ip rule del pref 0
  for pair in "$ADDR veth1 $HOSTADDR" "$HOSTADDR veth0 $ADDR"; do
    read -r to dev from <<<"$pair"
    $ip route add $to dev $dev src $from table $n
    $ip rule add pref 1$n iif lo to $to lookup $n
    $ip rule add pref 2$n oif $dev to $to lookup $n
    n=$((n + 1))
  done
}
wire_routes_remove() {
  local f
  echo 0 >/proc/sys/net/ipv4/conf/all/accept_local
  ip -$FAMILY rule add pref 0 lookup local
  for f in 100 11 12 21 22; do ip -$FAMILY rule del pref $f; done
}
reachable() { ping -c1 -W1 -q $ADDR >/dev/null 2>&1; }
dad() { [ $FAMILY = 4 ] || echo nodad; }

rdma_link() { # DEVICE INTERFACE PREFIX-COMMAND
  $3 rdma link add $1 type ${LINK/soft/$SOFT_HOST} netdev $2
  wait_for 10 eval "rdma link show $1/1 | grep -q 'state ACTIVE'"
}

# disk_up: an ext4 file system at /run/disk for file namespaces. It survives the target, not the
# kernel.
disk_up() {
  mkfs.ext4 -q -F /dev/ram0; mkdir -p /run/disk; mount /dev/ram0 /run/disk
}
# dm NAME TABLE: creates a device of device-mapper. dm_table NAME TABLE: replaces its table.
dm() {
  dmsetup create "$1" --table "$2" || fail "dmsetup create $1"
  dmsetup mknodes
}
dm_table() { dmsetup suspend --noflush "$1"; dmsetup load "$1" --table "$2"; dmsetup resume "$1"; }
dm_block() { dmsetup info -c --noheadings -o blkdevname "$1"; } # NAME: prints dm-N

# lab_teardown runs at the end of every scenario, with any result. If others follow in the same
# kernel, nothing of this one may be left.
lab_teardown() {
  local rc=$?
  trap - EXIT
  case $rc-${LAB_STATE:-} in
    0-/* | 77-/*) lab_down ;;
  esac
  if [ $rc != 0 ] && [ $rc != 77 ] && ls /run/target*.log >/dev/null 2>&1; then
    echo "-- the last lines of the target's log:"; tail -n 60 /run/target*.log
  fi
  exit $rc
}
trap lab_teardown EXIT
