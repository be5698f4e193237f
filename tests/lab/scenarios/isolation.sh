# A peer that misbehaves over verbs (culprit/) beside a Linux host that writes, reads and sends Keep
# Alives: no command of the host fails, its connection lives, and the target then holds the same
# objects as before. In full no command stalls, and the 99th percentile of the latency stays close
# to its value alone.
# variants: rxe siw
# covers: fabric/rdma fabric/rdma/verbs fabric/admission internal/httpd internal/limit
# covers: nvme/target/qos nvme/target/shares nvme/target/compound nvme/target/dispatch
# covers: internal/turns internal/metrics internal/subnet
# cc: culprit
# alone: it measures
# limit: 500
. "$LAB_DIR/lib.sh"
[ "$TOPOLOGY" = two ] || skip "needs a network between host and target"
culprits=(capsules remote-write remote-read dead-keys bad-private cm-flood half-open no-receives
  stop-serving)
# Soft iWARP has neither atomics nor immediate data.
[ "$LINK" != rxe ] || culprits+=(send-imm remote-atomic)
NAMESPACES=(1:file:64MiB:/run/disk/1.img:4096 2:file:64MiB:/run/disk/2.img)
CULPRIT_ADDR=10.0.0.3
CULPRIT_NQN=nqn.2014-08.org.nvmexpress:uuid:12345678-0000-4000-8000-0000000000c1
ALLOWED="$HOSTNQN $CULPRIT_NQN"
copy_function target_config plain_config
target_config() {
  plain_config
  echo "metrics: {listen: \"127.0.0.1:9500\"}"
  echo "rdma: {max_connections_per_host: 256}"
}

metrics() { on_target curl -s http://127.0.0.1:9500/metrics; }
goroutines() { metrics | awk '/^go_goroutines/ {print $2}'; }
goroutines_back() { [ "$(goroutines)" -le $((GOROUTINES + 2)) ]; }
# Completion queues are kept: as many as for the most connections at once.
copy_function held objects
held() {
  objects | grep -v '^cq '
  metrics | grep -E '^nvmf_target_(connections|controllers|controller_queues|queue_memory_bytes){'
}

# victim NAME: the work of the host. Both jobs verify the data that they read, and the writes do not
# fit into capsules. It sets P99 to the larger of the percentiles of reads and writes and MAX to the
# longest latency, in milliseconds.
WORK=(--size=8M --iodepth=4 --rate_iops=500 --time_based --runtime=3)
victim() {
  rm -f /tmp/$1-{reads,writes}.json
  fio_run $1-reads --rw=randread --bs=4k --verify=crc32c --verify_fatal=1 "${WORK[@]}" & reads=$!
  fio_verify $1-writes --bs=8k --offset=8M --verify_backlog=32 "${WORK[@]}"
  wait $reads || fail "fio $1-reads: exit code $?"
  P99=$(latency $1 'percentile."99.000000"') MAX=$(latency $1 max)
}
latency() { # NAME FIELD
  jq -s "[.[].jobs[0] | .read, .write | .clat_ns.$2 // 0] | max / 1e6 | ceil" \
    /tmp/$1-{reads,writes}.json
}
culprit() { # CASE SECONDS [KEY:ADDRESS...]
  local case=$1 time=$2; shift 2
  "$CULPRIT_BIN" $case $time $ADDR $PORT $CULPRIT_ADDR $NQN $CULPRIT_NQN "$@"
}
# The keys of the target, each with the start of every mapping that it can write, which no peer can
# know. Not on siw, where they open the memory (docs/adr/0005).
keys() {
  local key
  [ "$LINK" = rxe ] || return 0
  rdma resource show mr | sed -nE 's/^dev target0 .* rkey 0x([0-9a-f]+) .*/\1/p' |
    while read -r key; do
      awk -v k="$key" '$2 ~ /^rw/ && !$6 {sub(/-.*/, "", $1); print k ":" $1}' "/proc/$TPID/maps"
    done
}
culprit_began() { grep -q began /run/culprit.log || ! kill -0 $culprit 2>/dev/null; }
# beside CASE: the work of the host while the culprit is at its own; fails if it is too slow.
beside() {
  local more=''
  case $1 in
    remote-*) more=$(keys) ;;
    stop-serving) nft "add rule ip lab out ip saddr $CULPRIT_ADDR meta length > 2000 drop" ;;
  esac
  : >/run/culprit.log
  culprit $1 5 $more >/run/culprit.log 2>&1 & culprit=$!
  wait_for 20 culprit_began
  victim $1
  wait $culprit || { cat /run/culprit.log; fail "$1: the culprit ended with exit code $?"; }
  nft flush table ip lab
  say "beside $1: p99 $P99 ms, at most $MAX ms; $(grep -v began /run/culprit.log | tr '\n' ' ')"
  ! measuring || { [ "$P99" -le "$limit" ] && [ "$MAX" -le "$longest" ]; }
}

disk_up; lab_up
ip addr add $CULPRIT_ADDR/24 dev veth1
nft 'add table ip lab; add chain ip lab out { type filter hook output priority 0; }'
ulimit -n 8192
target_start; host_connect --keep-alive-tmo=5
fio_verify layout --bs=4k --size=8M
culprit half-open 1; victim first
leak_mark; GOROUTINES=$(goroutines)
victim alone; alone=$P99
# The kernel and all processes of all sides share one CPU, and that with the rest of the machine. On
# a busy machine, three rounds in four stay below alone + 50 ms, and one in thirty exceeds alone +
# 250. A host that had to wait for the culprit would wait for seconds each time.
limit=$((2 * alone > alone + 250 ? 2 * alone : alone + 250))
longest=$((MAX + 1000))
say "alone: p99 $alone ms, at most $MAX ms; the target has $GOROUTINES goroutines"
for name in ${CULPRITS:-$(sample 4 "${culprits[@]}")}; do
  beside $name || beside $name || beside $name ||
    fail "$name: three times p99 is above $limit ms, or the longest latency above $longest ms"
  leak_check 65536
  wait_for 15 goroutines_back
done
if [ -z "$SAMPLE" ]; then
  say "the target ends what makes no progress, although the culprit stays"
  culprit half-open 25
  logged "no successful Connect command in time"
  # On iWARP a message without a receive ends the connection at once.
  if [ "$LINK" = rxe ]; then
    culprit no-receives 60 | tee /run/culprit.log
    grep -q "disconnected" /run/culprit.log || fail "queues whose host posts no receives stay"
  fi
  leak_check 65536
fi
[ "$(cat "/sys/class/nvme/$CTRL/state")" = live ] || fail "the host has lost its connection"
host_disconnect
# Messages of software devices about the queue pairs of the culprit. Reconnects of the host would
# show.
nft delete table ip lab
klog_check 'siw: got TERMINATE|make_send_cqe|do_complete'
target_stop
