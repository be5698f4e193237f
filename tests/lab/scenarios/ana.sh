# Native multipath over two listeners, an RDMA one and tcp or tcp twice, while fio writes and verifies: ANA
# states move the I/O from one path to the other and back, by hand and by reloads, and one path is
# cut. The host sees no error.
# variants: tcp rxe siw
# soak: soft
# root: soft
# smoke: tcp rxe siw
# covers: internal/listeners nvme/target nvme/target/ana internal/app internal/control internal/cli
# limit: 420
. "$LAB_DIR/lib.sh"
[ "$TARGET" = ours ] || skip "the states are set by our commands"
NAMESPACES=(1:ram:64MiB)
SECOND=10.0.0.3 STATES=''
TARGET_LISTENERS=tcp/$SECOND/$PORT
copy_function target_config plain_config
target_config() { # STATES of the second listener
  plain_config | sed "/address: \"$SECOND\"/s/}$/, ana_states: {$STATES}}/"
}
connect_second() { # OPTIONS: the second path, B
  TRTYPE=tcp ADDR=$SECOND nvme_connect --reconnect-delay=1 "$@"
  B=$(controllers | grep -v "^$A\$")
  wait_for 10 eval "live $A && live $B && ana_state $B optimized"
  PATH_A=$(path_of $A) PATH_B=$(path_of $B)
}
live() { [ "$(<"/sys/class/nvme/$1/state")" = live ]; }
path_of() { echo /sys/class/nvme/$1/nvme*c*n1; } # CTRL
ana_state() { [ "$(cat $(path_of $1)/ana_state 2>/dev/null)" = "$2" ]; }
states() { wait_for 10 eval "ana_state $A $1 && ana_state $B $2"; } # OF-A OF-B
# used A|B|both: only these paths have I/O, apart from I/O already in flight.
used() {
  local a b least
  case $1 in A) least='200 0' ;; B) least='0 200' ;; both) least='50 50' ;; esac
  a=$(completed $PATH_A) b=$(completed $PATH_B)
  wait_for 20 paths_moved $least
  a=$(($(completed $PATH_A) - a)) b=$(($(completed $PATH_B) - b))
  say "I/O of the paths: $a $b"
  case $1 in A) [ $b -le 40 ] ;; B) [ $a -le 40 ] ;; esac || fail "not $1: $a and $b"
}
paths_moved() { # LEAST-OF-A LEAST-OF-B: since used has set a and b
  load_goes_on
  [ $(($(completed $PATH_A) - a)) -ge $1 ] && [ $(($(completed $PATH_B) - b)) -ge $2 ]
}
set_state() { # A|B STATE
  local l=$ADDR:$PORT
  [ "$1" = A ] || l=$SECOND:$PORT
  say "ana set 1 $2 at $1"
  "$TARGET_BIN" ana set 1 "$2" --listener $l >/run/ana || fail "ana set: exit code $?"
}
policy() {
  say "iopolicy $1"
  for p in /sys/class/nvme-subsystem/*/iopolicy; do echo "$1" >"$p"; done
}
reload() {
  STATES=$1; target_config >/run/target.yaml
  RELOADS=$((${RELOADS:-0} + 1))
  kill -HUP "$TPID"
  wait_for 10 log_has "the configuration was applied" $RELOADS
}

lab_up
on_target ip addr add $SECOND/$PREFIX dev veth0
target_start
host_connect --reconnect-delay=1; A=$CTRL
connect_second
nvme id-ctrl /dev/$A >/run/id
grep -qE '^cmic *: (0xb|11)$' /run/id && grep -qE '^anacap *: (0x1f|31)$' /run/id || fail "no ANA"
nvme ana-log /dev/$A >/run/log || fail "nvme ana-log: exit code $?"
states optimized optimized
load ana --bs=4k --size=2M --iodepth=16 --time_based --runtime=3
policies='round-robin queue-depth'
[ -z "$SAMPLE" ] || policies=$(awk "{print \$($SAMPLE % 2 + 1)}" <<<"$policies")
for p in $policies; do
  policy $p
  used both
  set_state A non-optimized; states non-optimized optimized; used B
  set_state B inaccessible; states non-optimized inaccessible; used A
  set_state B configured; states non-optimized optimized
  set_state A inaccessible; states inaccessible optimized; used B
  set_state A configured; states optimized optimized
done
reload '1: inaccessible'; states optimized inaccessible; used A
reload ''; states optimized optimized; used both
live $A && live $B || fail "a path was disconnected"
log_count "controller removed" >/run/ended; [ "$(cat /run/ended)" = 0 ] || fail "queues ended"
klog_check
say "no path"
set_state A inaccessible; set_state B change; states inaccessible change
set_state A configured; states optimized change; used A
set_state B configured; states optimized optimized
klog_check 'no usable path - requeuing I/O|nvme_ns_head_submit_bio: .* callbacks suppressed'

if [ "$TOPOLOGY" != two ] || [ -n "$SMOKE" ]; then load_ends; host_disconnect; target_stop; exit; fi
say "the second path is cut"
klog_mark
nvme disconnect -d $B >/dev/null || fail "nvme disconnect: exit code $?"
connect_second --keep-alive-tmo=$(sized 5 5 2)
used both
nft 'add table ip lab; add chain ip lab out { type filter hook output priority 0; }'
nft "add rule ip lab out ip daddr $SECOND drop"
wait_for 20 eval "! live $B"
used A
nft delete table ip lab
wait_for 40 eval "live $B && ana_state $B optimized"
used both
load_ends
klog_check "nvme nvme[0-9]+: .*(I/O|keep_?alive|connect|error recovery|timeout)"
host_disconnect; target_stop
