# The target restarts under systemd, planned and after SIGKILL, while fio writes: with one path, and
# with a second one at another target, where it is drained as well. The hosts have the udev rule and
# come back soon; they reset before a planned restart, and connect while there is no target: systemd
# keeps the listening sockets of TCP, and of RDMA devices a successor listens early (BY=systemctl: it
# does not). Printed: the longest write of fio, which is how long the host stalls. The unit is the
# packaged one. At the end it is restarted in every order of successors, an upgrade, a reload,
# systemd and SIGKILL.
# RULE=no: without the rule.
# variants: tcp rxe siw soft softiw
# covers: fabric/tcp fabric/rdma fabric/rdma/verbs/soft/mpa fabric/rdma/verbs/soft/cm nvme/target internal/app internal/listeners internal/listen packaging
# limit: 400
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-systemd.sh"
[ "$TARGET" = ours ] || skip "the kernel's target does not restart"
: "${ROUNDS:=$(sized 1 1 2)}" "${RULE:=yes}"
SECOND=10.0.0.3 OTHER=''
case $TRANSPORT in rxe | siw) DEVICE=yes ;; *) DEVICE=no ;; esac
: "${BY:=$([ $DEVICE = no ] && echo systemctl || echo successor)}"
# whether the next process listens in time
case $DEVICE-$BY in yes-systemctl) KEPT=no ;; *) KEPT=yes ;; esac
# The two targets share a disk, each through a device of its own.
for d in first second; do dm $d "0 $((64 << 11)) linear /dev/ram1 0"; done
NAMESPACES=(1:block::/dev/mapper/first)
second_path() { # another target, which stays; its connections use their own values
  on_target ip addr add $SECOND/$PREFIX dev veth0
  target_config | sed -e "s|address: \"$ADDR\"|address: $SECOND|" -e 's|mapper/first|mapper/second|' \
    -e /^metrics:/d -e 's|allow_any_host: true|&\n    cntlid_min: 1000|' >/run/second.yaml
  echo 'control: {socket: /run/second.sock}' >>/run/second.yaml
  STATE_DIRECTORY=/run/second target_exec "$TARGET_BIN" serve --config /run/second.yaml \
    >/run/second.log 2>&1 &
  OTHER=$!
  wait_for 20 second_connects
  settings $(controllers | grep -v "^$CTRL$") 40 2
}
second_connects() {
  ADDR=$SECOND nvme_connect --ctrl-loss-tmo=40 --reconnect-delay=2 2>/dev/null
}
# settings CONTROLLER CTRL_LOSS_TMO RECONNECT_DELAY: waits until it has these.
settings() {
  wait_for 10 value $1 ctrl_loss_tmo $2
  wait_for 10 value $1 reconnect_delay $3
}
value() { [ "$(cat /sys/class/nvme/$1/$2)" = "$3" ]; }
all_live() { ! cat /sys/class/nvme/nvme*/state | grep -qvx live; }
target_restart() {
  if [ $BY = systemctl ]; then unit restart --no-block; else target_do restart; fi ||
    fail "the unit does not restart"
}
target_do() { inside nvmf-target "$@" >/run/done; }
target_drain() { target_do drain $ADDR:$PORT || fail "drain: exit code $?"; }
# stall restart|kill|drain BOUND: prints the longest write meanwhile, which may take BOUND ms. It
# fails if the host was to reset by itself, and lost its connection instead.
stall() {
  local ms fio
  fio --name=stall --filename=$DEV --direct=1 --ioengine=io_uring --rw=randwrite --bs=4k \
    --size=32M --time_based --runtime=$(sized 2 2 4) --output-format=json \
    --output=/tmp/stall.json >/tmp/fio.err 2>&1 & fio=$!
  io_mark; wait_for 20 io_moved 20
  klog_mark
  "target_$1"
  wait $fio || { cat /tmp/fio.err; fail "fio: exit code $?"; }
  case $1 in
    drain) target_do undrain $ADDR:$PORT || fail "undrain: exit code $?" ;;
    *) target_is_back ;;
  esac
  wait_for 30 all_live
  [ $1-$KEPT != restart-yes ] || found_listener || return 1
  ms=$(sed -n '/^{/,$p' /tmp/stall.json | jq '.jobs[0].write.clat_ns.max / 1e6 | floor')
  say "$TRANSPORT, $1, $paths path(s): a write took $ms ms"
  ! measuring || [ $RULE = no ] || [ $ms -le $2 ] || fail "the host has stalled for $ms ms"
}

found_listener() {
  klog_has "$CTRL: resetting controller due to persistent internal error" &&
    ! klog_has "$CTRL: (Reconnecting|failed to connect|starting error recovery)"
}
# restarted BOUND: stalls until the host has reset by itself. The target waits for a second, in
# which a host on a busy machine may not begin to.
restarted() {
  stall restart $1 || stall restart $1 || stall restart $1 ||
    fail "three times the host has not reset by itself, or did not find a listener"
}

lab_up; systemd_up
[ $RULE = no ] || udev_up
target_start; host_connect
[ $RULE = no ] || settings $CTRL off 1
case $KEPT in yes) planned=1000 ;; *) planned=2000 ;; esac
case $TRANSPORT in soft) most=1 ;; *) most=2 ;; esac # RoCE has one UDP port for all targets
case $TRANSPORT in soft) killed=3000 ;; *) killed=2000 ;; esac # here the next target tells the host
for paths in $(seq $most); do
  [ $paths = 1 ] || second_path
  for _ in $(seq $ROUNDS); do
    restarted $((paths == 1 ? planned : 500))
    stall kill $((paths == 1 ? killed : 500))
    [ $paths = 1 ] || stall drain 500
  done
done
[ $RULE = no ] || ! dmesg | grep -E "$CTRL: Reconnecting in ([2-9]|10) seconds" ||
  fail "the host waits for longer than the rule says"
host_disconnect
[ -z "$OTHER" ] || { kill $OTHER; wait $OTHER || fail "the second target: exit code $?"; }

# Successors in the sandbox, as the user of the unit. What the target has promised to hosts stays.
as_user() {
  inside setpriv --reuid=nvmf-target --regid=nvmf-target --clear-groups \
    nvmf-target restart >/run/done || fail "no successor: $(tail -n 1 /run/target.log)"
}
upgrade() {
  cp "$TARGET_BIN" /run/next; echo upgrade >>/run/next
  target_install /run/next; inside systemctl daemon-reload
  as_user
}
reload() {
  unit reload || fail "no reload: $(tail -n 1 /run/target.log)"
  [ "$(unit_property MainPID)" = "$TPID" ] || fail "a reload has replaced the process"
}
restart() { unit restart || fail "the unit does not restart"; }
host_connect
nvme resv-register $DEV --nrkey=7 --cptpl=3 || fail "resv-register: exit code $?"
for step in as_user as_user reload upgrade restart as_user target_kill; do
  say "$step"
  restarts=$(unit_property NRestarts)
  $step
  [ $step = reload ] || target_is_back
  case $step in target_kill) restarts=$((restarts + 1)) ;; restart) restarts=0 ;; esac
  [ "$(unit_property NRestarts)" = $restarts ] || fail "systemd has restarted it by itself"
  wait_for 30 all_live
  fio_verify "$step" --iodepth=8 --bs=4k --size=1M
done
inside cmp /run/next /proc/$TPID/exe || fail "the program is not the installed one"
nvme resv-report $DEV --eds --numd=63 --output-format=json >/run/report || fail "resv-report"
[ "$(jq .regctl /run/report)" = 1 ] || fail "the registration is lost: $(cat /run/report)"
[ "$(inside stat -c %U /var/lib/nvmf-target/state /proc/$TPID | uniq)" = nvmf-target ] ||
  fail "not all of it belongs to nvmf-target"
host_disconnect
# systemd lets a successor end in its own time.
as_user; target_is_back
target_stop
! grep -F "not implemented" /run/target.log || fail "the unit does not allow a system call"
[ "$(unit_property Result)" = success ] || fail "the unit ended with $(unit_property Result)"
systemd_down
