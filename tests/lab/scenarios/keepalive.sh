# The host vanishes from the network: the target frees its controller when keep-alive expires, and the host comes back later.
# variants: rxe siw tcp
# limit: 120
. "$LAB_DIR/lib.sh"
[ "$TOPOLOGY" != loop ] || skip "needs a network between host and target"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
# What the first host makes the target keep: a completion queue, and the namespace's memory that was read, registered.
host_connect
read_some() { dd if="$DEV" of=/dev/null bs=64k count=64 iflag=direct status=none; }
read_some; host_disconnect
leak_mark
host_connect --keep-alive-tmo=4 --reconnect-delay=1 --ctrl-loss-tmo=60
peers() { ! [ "$(held)" = "$HELD" ]; }
no_peers() { [ "$(held)" = "$HELD" ]; }
peers || fail "a connected host is not seen in what the target holds: the check would prove nothing"
say "the host freezes"
start=$(date +%s%N)
tc qdisc add dev veth1 root netem loss 100%
on_target tc qdisc add dev veth0 root netem loss 100%
wait_for 20 no_peers
took=$((($(date +%s%N) - start) / 1000000))
say "the target let go after $took ms (keep-alive timeout 4000 ms)"
[ $took -ge 2000 ] || fail "too early: the keep-alive timeout is 4 s, $took ms after the last command"
say "the host is back"
wait_for 20 ctrl_lost
tc qdisc del dev veth1 root; on_target tc qdisc del dev veth0 root
wait_for 40 ctrl_live
read_some || fail "cannot read after the return"
host_disconnect
leak_check 8192
