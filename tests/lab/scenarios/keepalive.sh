# The host disappears from the network: the target frees its controller when keep alive expires, and
# the host comes back later.
# variants: rxe siw tcp
# soak: soft
# covers: nvme/target internal/reactor
. "$LAB_DIR/lib.sh"
[ "$TOPOLOGY" != loop ] || skip "needs a network between host and target"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
# The target keeps some objects of the first host: a completion queue, and registrations of the
# namespace's memory that was read.
host_connect
read_some() { dd if="$DEV" of=/dev/null bs=64k count=64 iflag=direct status=none; }
read_some; host_disconnect
leak_mark
host_connect --keep-alive-tmo=4 --reconnect-delay=1 --ctrl-loss-tmo=60
no_peers() { [ "$(held)" = "$HELD" ]; }
! no_peers || fail "what the target holds does not change with a host: the check shows nothing"
say "the host stops communicating"
start=$(date +%s%N)
tc qdisc add dev veth1 root netem loss 100%
on_target tc qdisc add dev veth0 root netem loss 100%
wait_for 20 no_peers
took=$((($(date +%s%N) - start) / 1000000))
say "the target freed everything after $took ms (keep alive timeout 4000 ms)"
! measuring || [ $took -ge 2000 ] || fail "too early: the timeout is 4 s, and it took $took ms"
say "the host is back"
wait_for 20 ctrl_lost
tc qdisc del dev veth1 root; on_target tc qdisc del dev veth0 root
wait_for 40 ctrl_live
read_some || fail "cannot read after the return"
host_disconnect
leak_check 8192
