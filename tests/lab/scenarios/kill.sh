# The target is killed while fio writes and verifies a file namespace, and started again: the host
# reconnects, fio sees no error, and the data is intact.
# variants: rxe siw tcp soft softiw
# smoke: rxe siw tcp
# covers: fabric/tcp fabric/rdma nvme/target backend/file internal/state
# cpus: 2
# limit: 400
. "$LAB_DIR/lib.sh"
disk_up
NAMESPACES=(1:file:256MiB:/run/disk/1.img:4096)
lab_up; target_start; host_connect --reconnect-delay=1
size=$(sized 4M 32M 32M)
fio_verify before --iodepth=32 --bs=4k --size=$size --offset=128M
load kill --iodepth=16 --bs=4k --size=$(sized 8M 64M 64M) --time_based --runtime=$(sized 3 15 15)
for i in $(seq $(sized 1 3 3)); do
  wait_for 20 load_moved 500
  target_kill
  wait_for 30 ctrl_lost
  target_restart
  wait_for 30 ctrl_live
  say "killed and back: $i"
done
load_ends
fio_run after --rw=randread --verify=crc32c --verify_fatal=1 --verify_only --norandommap=0 \
  --iodepth=32 --bs=4k --size=$size --offset=128M
host_disconnect
target_stop
