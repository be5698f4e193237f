# Events on the machine of the target, not on its network: its clock is set, other programs take its
# CPU time, it stands still, and it is away for longer than the host waits.
# variants: rxe siw tcp
# soak: soft
# covers: nvme/target internal/reactor internal/check internal/doctor
# limit: 450
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
# The target keeps some objects of the first host: a completion queue, registrations of the memory of
# the namespace that was used, and that memory.
host_connect; fio_verify first --iodepth=8 --bs=64k --size=32M; host_disconnect
leak_mark
host_connect --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=60
busy() { load "$1" --iodepth=8 --bs=4k --size=32M --time_based --runtime="$2"; }

say "the clock is set a day forward, two back, and right again"
klog_mark
busy clock 10
for by in '+1 day' '-2 days' '+1 day'; do
  io_mark
  date -s "$(date -d "$by" '+%F %T')" >/dev/null
  wait_for 20 load_moved 200
done
load_ends
klog_check

say "eight programs take CPU time for three keep alive timeouts"
klog_mark
hogs=()
for _ in 1 2 3 4 5 6 7 8; do (while :; do :; done) & hogs+=($!); done
sleep 15
kill "${hogs[@]}"; wait "${hogs[@]}" 2>/dev/null || true
ctrl_live || fail "the host lost its controller"
klog_check 'long keepalive RTT'

say "the target stands still until the host gives the connection up"
busy still 10
wait_for 20 load_moved 200
kill -STOP "$TPID"
wait_for 30 ctrl_lost
kill -CONT "$TPID"
wait_for 40 ctrl_live
wait_for 20 load_moved 200
load_ends
host_disconnect
leak_check 8192 4

say "the target is away for longer than the host waits"
# Without an RDMA device nothing answers requests of the host's kernel, which then takes more than a
# minute for each attempt to connect. So the host makes none.
loss=3; [ $LINK != soft ] || loss=0
host_connect --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=$loss
target_kill
wait_for 30 no_controllers
target_restart
[ "$(target_fds)" -gt 0 ] || fail "the target does not run"
HELD=''; wait_for 15 held_same
say "a host that gave up has nothing: $(tr '\n' ' ' <<<"$HELD")"
host_connect; host_disconnect
target_stop
