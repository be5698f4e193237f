# One of two paths is drained while fio writes and verifies: the host goes on over the other one and
# sees no error, discovery shows the remaining path, a reload changes nothing, and the path returns
# by itself after undrain.
# variants: tcp rxe
# soak: soft
# root: soft
# covers: internal/listeners nvme/target internal/app internal/control internal/cli internal/observed
# limit: 360
. "$LAB_DIR/lib.sh"
[ "$TARGET" = ours ] || skip "the kernel's target cannot drain a port"
NAMESPACES=(1:ram:64MiB)
SECOND=10.0.0.3
TARGET_LISTENERS=$TRTYPE/$SECOND/$PORT
lab_up
on_target ip addr add $SECOND/$PREFIX dev veth0
target_start
host_connect --reconnect-delay=1
ADDR=$SECOND nvme_connect --reconnect-delay=1
for p in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >"$p"; done
live() { [ "$(grep -lx live /sys/class/nvme/nvme*/state | wc -l)" = "$1" ]; }
entries() { [ "$(ADDR=$SECOND discover | grep -cx "subnqn: *$NQN")" = "$1" ]; }
state() { "$TARGET_BIN" listeners | grep -qF "$ADDR:$PORT  $1"; }
wait_for 10 live 2
load drain --bs=4k --size=32M --iodepth=16 --time_based --runtime=15
for round in 1 2 3; do
  entries 2 || fail "discovery does not show both ports"
  wait_for 20 load_moved 500
  "$TARGET_BIN" drain $ADDR:$PORT || fail "drain: exit code $?"
  state drained || fail "the listener is not drained"
  wait_for 10 live 1
  entries 1 || fail "discovery shows the drained port"
  kill -HUP "$TPID"
  wait_for 10 log_has "the configuration was applied" $round
  wait_for 20 load_moved 500
  state drained || fail "a reload ends the drain"
  "$TARGET_BIN" undrain $ADDR:$PORT >/dev/null || fail "undrain: exit code $?"
  wait_for 20 live 2
done
load_ends
host_disconnect; target_stop
