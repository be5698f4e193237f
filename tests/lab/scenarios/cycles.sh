# 64 times: connect, read, disconnect. Afterwards the target holds the same objects as before.
# variants: rxe siw tcp soft softiw
# covers: nvme/target fabric/tcp fabric/rdma fabric/admission internal/mem internal/list
# limit: 640
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
cycle() {
  nvme_connect || fail "nvme connect: exit code $?"
  wait_for 10 readable
  nvme disconnect -n $NQN >/dev/null || fail "nvme disconnect: exit code $?"
}
readable() { dd if=/dev/nvme0n1 of=/dev/null bs=64k count=4 iflag=direct status=none 2>/dev/null; }
# The first rounds may fill caches and start threads, and the heap grows until Go first collects its
# garbage, 5 to 6 MiB: from round 80 or so the RSS stays.
for i in $(seq 96); do cycle; done
leak_mark
for i in $(seq 64); do cycle; done
leak_check 4096
klog_check
target_stop
