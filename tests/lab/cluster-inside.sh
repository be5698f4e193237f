# Inside a kernel of the lab: a Linux host writes to an image of Ceph through two gateways. One is
# killed, and then the other one is drained.
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-ceph.sh"
. "$LAB_DIR/lib-gateways.sh"
step() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
show() { printf '\033[36m$ %s\033[0m\n' "$*"; "$@" || true; }
# progress SECONDS [COMMAND...]: prints the I/Os through each gateway every second for this time, or
# until COMMAND succeeds. It fails if COMMAND does not succeed in time.
progress() {
  local left=$1 g at; shift
  while [ $left -gt 0 ] && ! { [ $# -gt 0 ] && "$@"; }; do
    for g in a b; do SEEN[$g]=$(ios $g); done
    sleep 1
    printf '  %3d s ' $SECONDS
    for g in a b; do
      at=$(ios $g) state=$(ana_state $g)
      live $g || state='not connected'
      printf '   gateway %s (%s): %d I/Os' $g "$state" $((at - SEEN[$g]))
    done
    echo
    load_goes_on; left=$((left - 1))
  done
  [ $left -gt 0 ] || [ $# = 0 ] || "$@" || fail "not in time: $*"
}
# ios NAME: completed I/Os of a path; 0 if there is none.
ios() { if [ -n "$(ana_state $1)" ]; then completed "$(path_of $1)"; else echo 0; fi; }
goes_through() { usable $1 && [ $(($(ios $1) - SEEN[$1])) -gt 20 ]; }
declare -A SEEN

step "A Ceph cluster of one monitor and one OSD starts, and two gateways to one of its images"
gateways_up
of_ceph ceph -s; cat $CEPH/out
step "The configuration of gateway a. That of b has its own name, address and controller IDs"
cat /run/a.yaml
step "Gateway a serves the group of the image, because it prefers it. Gateway b waits"
show gateway_ana a
show gateway_ana b
step "A Linux host connects to both. It sees one disk with two paths, and makes a file system on it"
gateways_connect
show nvme list-subsys "$DEV"

step "fio writes to a file on it and verifies what it has written. All I/O goes through gateway a"
load show --bs=4k --size=8M --iodepth=16 --time_based --runtime=45
progress 4
step "Gateway a is killed (SIGKILL). Its lease of the group ends after 5 seconds. Then gateway b
  makes the cluster refuse late writes of a, opens the image, and the host goes on through b"
gateway_end a KILL
progress 60 goes_through b
progress 3
step "Gateway a starts again. The host reconnects by itself, and the group stays at b"
gateway_start a
progress 60 settled
progress 3
step "Gateway b is drained, as before an upgrade: it ends its I/O and gives the group to a"
show gateway_ana b set 1 inaccessible
progress 60 goes_through a
progress 3
step "The end of fio: an I/O error or wrong data would show here"
load_ends
echo "longest stall: $STALL ms"
gateways_down
