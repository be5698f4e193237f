# Two gateways to an image of a Ceph cluster, and a host with a path to each of them. Sourced after
# lib.sh and lib-ceph.sh.
#
#   gateway a, network namespace target: veth0 10.0.0.1 --- veth1 10.0.0.2   the host and, at
#   gateway b, network namespace b:      veth2 10.0.1.1 --- veth3 10.0.1.2   10.0.9.1, the cluster
CEPH_ADDR=10.0.9.1
declare -A GW_NET=([a]=target [b]=b) GW_TRTYPE=([a]=$TRTYPE [b]=$TRTYPE) GW_PID=() GW_CTRL=()
declare -A GW_ADDR=([a]=$ADDR [b]=10.0.1.1) GW_PEER=([a]=$HOSTADDR [b]=10.0.1.2)
FIO_FILE=/tmp/fs/data
: "${FEATURES:=layering}" # with exclusive-lock, librbd fences as well
NAMESPACES=(1:rbd)
: "${BALANCE:=}" # there is a second group, and groups move after this many seconds
: "${OLD_BIN:=}" # the program of gateway b, if it is of an earlier version

on_gateway() { nsenter --net=/run/netns/"${GW_NET[$1]}" "${@:2}"; } # NAME COMMAND...
gateways_up() { # starts the cluster and both gateways
  local g
  [ $TOPOLOGY = two ] || skip "soft RoCE has no network namespaces before Linux 7"
  ceph_need; lab_up
  ip addr add $CEPH_ADDR/32 dev lo
  ip link add veth2 type veth peer name veth3
  ip netns add b; ip link set veth2 netns b; on_gateway b ip link set lo up
  on_gateway b ip link set veth2 mtu 4200 up; ip link set veth3 mtu 4200 up
  on_gateway b ip addr add ${GW_ADDR[b]}/24 dev veth2; ip addr add ${GW_PEER[b]}/24 dev veth3
  [ ${GW_TRTYPE[b]} = tcp ] || { rdma_link target1 veth2 "on_gateway b"; rdma_link host1 veth3 ""; }
  for g in a b; do on_gateway $g ip route add $CEPH_ADDR via ${GW_PEER[$g]}; done
  ceph_up
  of_ceph ceph auth get-or-create client.gateway mon 'profile rbd' osd 'profile rbd pool=rbd'
  cp $CEPH/out $CEPH/client.gateway.keyring
  of_ceph rbd create --size 64M --image-feature "$FEATURES" rbd/disk
  [ -z "$BALANCE" ] || of_ceph rbd create --size 64M --image-feature "$FEATURES" rbd/second
  gateway_start a; gateway_start b
  wait_for 30 gateway_says a optimized
}
# gateways_connect: connects the host to both, and mounts a file system of the image. One discovery
# log is enough for that, unless gateway b is of an earlier version, which may not be in it. And
# nvme-cli connects only to ports with the transport that it has read the log over.
gateways_connect() {
  local g from=a
  [ -n "$OLD_BIN" ] || wait_for 30 lists_both
  [ -z "$OLD_BIN" ] && [ ${GW_TRTYPE[a]} = ${GW_TRTYPE[b]} ] || from='a b'
  for g in $from; do
    nvme connect-all -t ${GW_TRTYPE[$g]} -a ${GW_ADDR[$g]} -s $PORT --hostnqn=$HOSTNQN \
      --hostid=$HOSTID --reconnect-delay=1 || fail "nvme connect-all: exit code $?"
  done
  for g in a b; do wait_for 20 connected $g; done
  wait_for 20 settled
  DEV=$(namespace_device 1)
  for g in a b; do wait_for 20 sees_both $g; done
  nvme list-subsys "$DEV" >/tmp/subsys # a gateway that has never served has a path as well
  [ "$(grep -Ec 'live (optimized|inaccessible)' /tmp/subsys)" = 2 ] ||
    { cat /tmp/subsys; fail "not two paths before a gateway is replaced"; }
  mkdir -p /tmp/fs; mkfs.ext4 -q "$DEV"; mount "$DEV" /tmp/fs
}
lists_both() {
  discover >/tmp/log && [ "$(grep -c "^subnqn: *$NQN" /tmp/log)" = 2 ] &&
    grep -q "^traddr: *${GW_ADDR[b]}\$" /tmp/log && grep -q "^trtype: *${GW_TRTYPE[b]}\$" /tmp/log
}
connected() { # NAME: finds the controller of the gateway
  local c
  for c in $(controllers); do
    ! grep -q "^traddr=${GW_ADDR[$1]}," /sys/class/nvme/$c/address || GW_CTRL[$1]=$c
  done
  [ -n "${GW_CTRL[$1]:-}" ]
}
gateways_down() {
  local g
  if mountpoint -q /tmp/fs; then
    umount /tmp/fs
    e2fsck -fn "$DEV" >/tmp/check 2>&1 || { cat /tmp/check; fail "ext4 is damaged"; }
  fi
  host_disconnect
  # A gateway that has just lost Ceph waits for it, longer than shutdown_timeout.
  for g in a b; do wait_for 60 at_rest $g; gateway_end $g TERM; done
  ceph_down
  if [ ${GW_TRTYPE[b]} = rdma ]; then rdma link del host1; on_gateway b rdma link del target1; fi
  ip link del veth3; ip netns del b; ip addr del $CEPH_ADDR/32 dev lo
}

gateway_config() { # NAME
  local prefers='' ids='cntlid_min: 32768' groups='[1]'
  [ "$1" = b ] || { prefers=', prefers: [1]' ids='cntlid_max: 32767'; }
  [ -z "$BALANCE" ] || groups="[1, 2], balance_after: ${BALANCE}s"
  cat <<EOF
control: {socket: /run/$1.sock}
reactors: {count: 1, spin: 0s}
listeners: [{transport: ${GW_TRTYPE[$1]}, address: ${GW_ADDR[$1]}, port: $PORT}]
group:
  {name: $1, pool: rbd, conf: $CEPH/ceph.conf, user: gateway,
   keyring: $CEPH/client.gateway.keyring, ana_groups: $groups$prefers}
subsystems:
  - nqn: $NQN
    allow_any_host: true
    $ids
    namespaces:
      - nsid: 1
        backend: rbd
        image: rbd/disk
        ceph: {conf: $CEPH/ceph.conf, user: gateway, keyring: $CEPH/client.gateway.keyring}
EOF
  [ -z "$BALANCE" ] || cat <<EOF
      - nsid: 2
        ana_group: 2
        backend: rbd
        image: rbd/second
        ceph: {conf: $CEPH/ceph.conf, user: gateway, keyring: $CEPH/client.gateway.keyring}
EOF
}
gateway_start() { # NAME
  local bin=$TARGET_BIN
  if [ "$1" = b ] && [ -n "$OLD_BIN" ]; then bin=/run/host$OLD_BIN; fi
  gateway_config "$1" >/run/"$1".yaml
  STATE_DIRECTORY=/run/state.$1 nsenter --net=/run/netns/"${GW_NET[$1]}" "$bin" serve \
    --config /run/"$1".yaml >>/run/target-"$1".log 2>&1 &
  GW_PID[$1]=$!
  wait_for 20 gateway_says "$1" .
}
gateway_signal() { kill -"$2" ${GW_PID[$1]}; } # NAME SIGNAL
gateway_end() { # NAME KILL|TERM
  local rc=0
  gateway_signal "$1" "$2"; wait ${GW_PID[$1]} 2>/dev/null || rc=$?
  [ "$2" = KILL ] || [ $rc = 0 ] || fail "gateway $1 ended with exit code $rc after SIGTERM"
}
gateway_ana() { "$TARGET_BIN" ana "${@:2}" --socket /run/"$1".sock; } # NAME ARGUMENTS...
gateway_says() { gateway_ana "$1" 2>/dev/null | awk '{print $4}' | grep -q "$2"; } # NAME STATE

# The host's view. usable NAME: the path to this gateway is. serving: prints the gateway in use.
live() { [ "$(cat /sys/class/nvme/${GW_CTRL[$1]}/state)" = live ]; }
path_of() { echo /sys/class/nvme/${GW_CTRL[$1]}/nvme*c*n1; }
ana_state() { cat $(path_of $1)/ana_state 2>/dev/null || true; }
usable() { live "$1" && [ "$(ana_state "$1")" = optimized ]; }
serving() { if usable a; then echo a; elif usable b; then echo b; else return 1; fi; }
sees_both() { # reports whether a gateway knows of both, and of no differences but the version
  "$TARGET_BIN" group status -o json --socket /run/$1.sock >/tmp/group || return
  jq -e '.[0] | (.gateways | length) == 2 and
    [.differences[]? | select(startswith("\"version\"") | not)] == []' /tmp/group >/tmp/ok
}
at_rest() { # NAME: reports whether the gateway neither takes its group nor gives it up
  "$TARGET_BIN" group status -o json --socket /run/$1.sock >/tmp/group || return
  jq -e '.[0].state | IN("serving", "standby")' /tmp/group >/tmp/ok
}
settled() { # both paths are there, and one is optimized
  live a && live b && serving >/dev/null &&
    [[ "$(ana_state a) $(ana_state b)" =~ inaccessible ]]
}

copy_function load_ends plain_load_ends
STALL=0
load_ends() { # it keeps the longest stall in STALL, in milliseconds
  plain_load_ends
  local now
  now=$(sed -n '/^{/,$p' "/tmp/${LOAD[0]}.json" |
    jq '[.jobs[0].write.clat_ns.max, .jobs[0].read.clat_ns.max] | max / 1e6 | floor')
  [ $now -le $STALL ] || STALL=$now
}

# unplug NAME hosts|ceph: drops the packets between a gateway and hosts or the cluster, where they
# arrive: a send that is refused ends the connection manager of rxe for good. replug NAME undoes it.
unplug() {
  local end=${GW_PEER[$1]} chain='type filter hook input priority 0;'
  [ "$2" = hosts ] || end=$CEPH_ADDR
  on_gateway "$1" nft "add table ip lab; add chain ip lab in { $chain }
    add rule ip lab in ip saddr $end drop"
  nft "add table ip lab_$1; add chain ip lab_$1 in { $chain }
    add rule ip lab_$1 in ip saddr ${GW_ADDR[$1]} ip daddr $end drop"
}
replug() { on_gateway "$1" nft delete table ip lab; nft delete table ip "lab_$1"; }
