# The target is killed at random points of reloads, while fio writes and verifies, and started
# again. It serves the configuration in its file, ports keep their IDs, and the generation of the
# discovery log never goes back. The host recovers by itself.
# variants: rxe siw tcp
# soak: soft
# covers: internal/app internal/engine config config/lang internal/control nvme/target
# cpus: 2
# limit: 600
. "$LAB_DIR/lib.sh"
. "$LAB_DIR/lib-reload.sh"
[ "$TARGET" = ours ] || skip "the kernel's target has no configuration file"
: "${KILLS:=$(sized 4 4 20)}"
disk_up
NAMESPACES=(1:file:64MiB:/run/disk/1.img:4096)
lab_up; target_start; host_connect --reconnect-delay=1
say "seed $SEED"
mkfifo /run/silent; exec 9<>/run/silent
await_visible 10
load kill --iodepth=8 --bs=4k --size=16M --time_based --runtime=10
for ((i = 1; i <= KILLS; i++)); do
  wait_for 20 load_moved 200
  change; target_config >/run/target.yaml
  ms=$((RANDOM % 31 * (RANDOM % 31) / 30)) # most reloads take less than 10 ms
  kill -HUP "$TPID"
  read -rt "$(printf 0.%03d $ms)" -u 9 || true # a pause without a process
  target_kill
  wait_for 30 ctrl_lost
  target_restart
  wait_for 30 ctrl_live
  await_visible 10; settle
  say "killed after $ms ms and back: $i"
done
load_ends
say "$(log_count "the configuration was applied") of $KILLS reloads were done before the kill"
disconnect_all; target_stop
