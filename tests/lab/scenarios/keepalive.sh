# The host vanishes from the network: the target frees its controller when keep-alive expires, and the host comes back later.
# variants: rxe siw tcp
# limit: 120
. "$LAB_DIR/lib.sh"
[ "$TOPOLOGY" != loop ] || skip "needs a network between host and target"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
host_connect; host_disconnect # what the first host of all makes the target keep
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
dd if="$DEV" of=/dev/null bs=64k count=16 iflag=direct status=none || fail "cannot read after the return"
host_disconnect
leak_check 8192
