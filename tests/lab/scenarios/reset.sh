# The controller is reset 8 times while fio writes and verifies: no I/O error, no wrong data.
# variants: rxe siw tcp soft softiw
# covers: nvme/target fabric/tcp fabric/rdma
# cpus: 2
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:256MiB)
lab_up; target_start; host_connect
load reset --iodepth=16 --bs=4k --size=64M --time_based --runtime=12
for i in $(seq 8); do
  wait_for 10 load_moved 500
  nvme reset "/dev/$CTRL" || fail "reset $i: exit code $?"
  wait_for 10 ctrl_live
done
load_ends
host_disconnect
klog_check 'resetting controller|no usable path|callbacks suppressed'
