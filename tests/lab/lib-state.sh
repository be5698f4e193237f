# Sourced by init.sh and by lib.sh: the state that scenarios in the same boot must not leave behind.

# state_kernel: prints the objects in the kernel, one a line.
state_kernel() {
  local d
  for d in /sys/class/nvme/nvme*; do
    [ ! -e "$d" ] || echo "NVMe controller ${d##*/} of $(cat "$d/subsysnqn" 2>/dev/null)"
  done
  for d in /sys/class/nvme-subsystem/*; do [ ! -e "$d" ] || echo "NVMe subsystem ${d##*/}"; done
  for d in /run/netns/*; do [ ! -e "$d" ] || echo "network namespace ${d##*/}"; done
  for d in /sys/class/net/*; do echo "network interface ${d##*/}"; done
  for d in /sys/class/infiniband/*; do [ ! -e "$d" ] || echo "RDMA device ${d##*/}"; done
  state_network
  ip -4 rule; ip -6 rule
  awk '{print "mount", $2}' /proc/mounts
  dmsetup ls 2>/dev/null | awk '!/^No devices/ {print "device-mapper", $1}'
  losetup -ln -O NAME,BACK-FILE | sed 's/^/loop device /'
  find /sys/kernel/config/{nullb,nvmet/{hosts,subsystems,ports}} -mindepth 1 -maxdepth 1 \
    ! -name features 2>/dev/null
  grep -s . /proc/sys/kernel/io_uring_disabled /proc/sys/vm/nr_hugepages \
    /proc/sys/net/ipv4/conf/{all,default,lo}/{accept_local,rp_filter} \
    /sys/module/nvme_core/parameters/*
}
# state_network: queueing disciplines and tables of nftables.
state_network() {
  tc qdisc show | sed -nE '/ noqueue /!s/^qdisc ([a-z_]+) .* dev ([a-z0-9]+).*/qdisc \1 of \2/p'
  nft list tables 2>/dev/null | sed 's/^/nftables /'
}
# state_processes [PID...]: processes other than kernel threads, init.sh, and these.
state_processes() {
  local mine p=$BASHPID pid parent line
  mine=" 1 2 $* $(cat "$LAB_PIDS") "
  while [ "$p" -gt 1 ]; do
    mine+="$p "; read -r line <"/proc/$p/stat"; read -r _ p _ <<<"${line##*) }"
  done
  for p in /proc/[0-9]*; do
    pid=${p##*/}
    { read -r line <"$p/stat"; } 2>/dev/null || continue
    read -r line parent _ <<<"${line##*) }"
    [[ $line = [!ZX] && $mine != *" $pid "* ]] || continue
    [[ " 2 $(cat "$LAB_PIDS") " != *" $parent "* ]] || continue
    line=$(tr '\0' ' ' 2>/dev/null <"$p/cmdline" | cut -c1-160)
    [ -z "$line" ] || echo "process $line"
  done
}
# state_rdma: the RDMA objects of programs and of the NVMe host and target.
state_rdma() {
  local kind
  for kind in qp cm_id mr pd; do
    rdma resource show $kind 2>/dev/null | grep -vE 'comm \[(ib_core|rdma_cm|iw_cm)\]' |
      sed "s/^/RDMA $kind: /"
  done
}
# state_none COMMAND...: waits until COMMAND prints nothing, for half a minute at most, because the
# kernel removes some things later. Then it fails, and prints the remaining output of COMMAND.
state_none() {
  local end=$((SECONDS + 30)) out
  while out=$("$@") && [ -n "$out" ]; do
    [ $SECONDS -lt $end ] || { printf '%s\n' "$out"; return 1; }
    sleep 0.05
  done
}

# lab_down removes everything made by lab_up, target_start, disk_up and the functions for disks. It
# fails if the scenario has left something else, or something that is still in use.
lab_down() {
  local left='' part d
  set +e; trap - ERR
  for d in state_controllers state_networks; do part=$(state_none $d) || left+=$part$'\n'; done
  if [ -n "$TPID" ] && [ -e "/proc/$TPID" ] && ! ours_ended; then ours_stop; fi
  if [ -n "$NOTIFY_PID" ]; then kill "$NOTIFY_PID"; wait "$NOTIFY_PID"; fi 2>/dev/null
  part=$(state_none state_processes $$ $PPID) || left+=$part$'\n'
  state_nvmet_down
  part=$(state_none state_rdma) || left+=$part$'\n'
  [ -z "$left" ] || fail "the scenario leaves behind:"$'\n'"$left"
  for d in /sys/class/infiniband/*; do
    [ ! -e "$d" ] || rdma link del "${d##*/}" 2>/dev/null || on_target rdma link del "${d##*/}"
  done
  if [ $TOPOLOGY = wire ]; then wire_routes_remove; fi
  ip link del veth1 2>/dev/null
  ip link del veth0 2>/dev/null
  [ ! -e /run/netns/target ] || ip netns del target
  if [ $LINK = soft ]; then
    wait_for 10 rdma system set netns shared # the namespace goes a little later
    sysctl -qw net.core.rmem_max="$RMEM_MAX"
  fi
  state_disks_down
}
state_controllers() { state_kernel | grep '^NVMe'; }
state_networks() {
  state_network
  [ ! -e /run/netns/target ] || on_target bash -c "$(declare -f state_network); state_network"
}
state_disks_down() {
  local at d i
  for i in 1 2 3 4; do # one lies on another
    for at in $(tac /proc/mounts | cut -d ' ' -f 2); do
      grep -qxF "mount $at" "$LAB_STATE" || umount "$at"
    done
    dmsetup remove_all
    losetup -D
  done >/dev/null 2>&1
  for d in /sys/kernel/config/nullb/*/; do
    [ ! -e "$d/power" ] || { echo 0 >"$d/power"; rmdir "$d"; }
  done
  # Their memory is free again, where the kernel's driver can do that.
  for d in /dev/ram0 /dev/ram1; do blkdiscard -f $d 2>/dev/null; done
}
state_nvmet_down() {
  local cfg=/sys/kernel/config/nvmet d
  rm -f $cfg/ports/*/subsystems/* $cfg/subsystems/*/allowed_hosts/* 2>/dev/null
  for d in $cfg/ports/*/ana_groups/*/ $cfg/ports/*/ $cfg/subsystems/*/namespaces/*/ \
    $cfg/subsystems/*/ $cfg/hosts/*/; do
    case $d in *'*'* | */ana_groups/1/) ;; *) rmdir "$d" ;; esac
  done
}
