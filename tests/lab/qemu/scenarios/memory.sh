# Memory on a machine with two NUMA nodes and free huge pages: arenas use huge pages, on the node of
# their reactor's CPU, and ordinary pages if there are not enough.
# variants: rxe
# covers: internal/mem internal/reactor
# nvmet: which has no memory of a process
# numa: yes
# go-test: ./internal/mem
# cpus: 2
# limit: 300
. "$LAB_DIR/lib.sh"
pages=/sys/kernel/mm/hugepages/hugepages-2048kB
echo 100 >$pages/nr_hugepages
free=$(cat $pages/free_hugepages)
[ "$free" -ge 64 ] || fail "only $free huge pages"
"$TEST_BIN" -test.v -test.timeout 120s >/run/mem.log 2>&1 ||
  { tail -n 40 /run/mem.log; fail "the tests of memory fail with huge pages"; }
grep -q '^--- PASS: TestArenaPages' /run/mem.log || fail "the test of huge pages did not run"
say "$(grep -c '^--- PASS' /run/mem.log) tests passed with huge pages"

NAMESPACES=(1:ram:64MiB)
copy_function target_config plain_config
target_config() { plain_config; echo "reactors: {cpus: [1]}"; }
lab_up; target_start; host_connect --nr-io-queues=1 --queue-size=32
dev=$(namespace_device 1)
dd if=/dev/zero of="$dev" bs=128k count=256 oflag=direct status=none
maps=$(grep -E ' prefer[a-z ]*[:=]1 ' /proc/"$TPID"/numa_maps) ||
  { cat /proc/"$TPID"/numa_maps; fail "no memory prefers node 1"; }
echo "$maps"
# The pages exist now, none of them on the other node.
grep -q ' N1=' <<<"$maps" || fail "no page on node 1"
if grep -q ' N0=' <<<"$maps"; then fail "pages on node 0"; fi
grep -q ' huge ' <<<"$maps" || fail "the arena is not in huge pages"
host_disconnect; target_stop
# The kernel unpins those of a ring in the background.
wait_for 10 grep -qx "$free" $pages/free_hugepages
klog_check
