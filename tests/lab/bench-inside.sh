# Inside a kernel of the lab, user-mode or under QEMU: the target on port 4420 and nvmet on 4421,
# both connected, measured alternately. Our null namespace is compared with a plain null_blk, our
# ram namespace with a memory-backed one. Each measurement is a record in $OUT/records, as JSON;
# tests/bench makes table, report and plot of them. $OUT/round names the round that begins.
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
LINKS=${LINKS//,/ } ROUNDS=${ROUNDS:-5} SECONDS_EACH=${SECONDS_EACH:-1} ALL=${ALL:-0} RUN=${RUN:-}
GROUP_SUFFIX=''
[ "$LAB_VM" != qemu ] || GROUP_SUFFIX=" under QEMU${SPIN:+, spinning}"
RECORDS=$OUT/records
REFERENCE=$NQN-reference
NAMESPACES=(1:null:1GiB 2:ram:64MiB)

# The rows: NAME|BYTES|BACKEND|QUEUES|fio's options. QUEUES is the number of I/O queues of the host,
# each of a controller of its own, since Linux makes at most one per CPU and controller. Rows that
# begin with + need ALL=1 or a RUN that matches.
works() {
  local q on n name rw size short options
  echo "4K random read QD 1 null|4096|null|1|--rw=randread --bs=4k --iodepth=1"
  echo "4K random read QD 32 null|4096|null|1|--rw=randread --bs=4k --iodepth=32"
  for n in 1 4 16; do
    on=''; [ $n = 1 ] || on=" on $n queues"
    for q in 1 32 128; do
      for rw in read write 70/30; do
        case $n-$rw in 1-read | 1-write) name='' ;; *) name=+ ;; esac
        case $rw in 70/30) short="randrw --rwmixread=70" ;; *) short=rand$rw ;; esac
        options="--rw=$short --bs=4k --iodepth=$q --numjobs=$n"
        echo "${name}4K random $rw QD $q$on|4096|ram|$n|$options"
      done
    done
    for size in 128K 1M; do
      for rw in read write; do
        case $n-$size in 1-128K) name='' ;; *) name=+ ;; esac
        options="--rw=$rw --bs=$size --iodepth=16 --numjobs=$n"
        options+=" --size=$((64 / n))M --offset_increment=$((64 / n))M"
        echo "$name$size $rw QD 16$on|$(numfmt --from=iec $size)|ram|$n|$options"
      done
    done
  done
  for q in 32 128; do
    for rw in read write; do
      echo "128K $rw QD $q|131072|ram|1|--rw=$rw --bs=128K --iodepth=$q"
    done
  done
  # Like perftest: always the same memory, which stays in the processor's caches.
  options="--rw=read --bs=128K --iodepth=16 --size=128K"
  echo "128K read QD 16 in one place|131072|ram|1|$options"
  options="--rw=randread --bs=256k --iodepth=4 --numjobs=8"
  echo "dataset loading: 256K random read, 8 jobs QD 4|262144|ram|1|$options"
  options="--rw=write --bs=1M --iodepth=16 --fsync=64"
  echo "checkpoint: 1M write QD 16, flush each 64M|1048576|ram|1|$options"
}
# wanted: the rows to be measured.
wanted() {
  local line name
  works | while read -r line; do
    name=${line%%|*}; name=${name#+}
    if [ -n "$RUN" ]; then
      [[ $name =~ $RUN ]] || continue
    elif [ "${line:0:1}" = + ] && [ "$ALL" != 1 ]; then
      continue
    fi
    echo "${line#+}"
  done
}

address() { case $1 in siw) echo 10.0.1.1 ;; *) echo 10.0.0.1 ;; esac; }
link_up() { # NAME N
  ip link add "v$1" type veth peer name "w$1"
  ip link set "w$1" mtu 4200 up; ip link set "v$1" mtu 4200 up
  ip addr add "10.0.$2.1/24" dev "v$1"
}
link_up a 0
for l in $LINKS; do
  case $l in
    rxe) LINK=rxe rdma_link rxe0 va "" ;;
    siw) link_up b 1; LINK=siw rdma_link siw0 vb "" ;;
  esac
done

# One target with a listener for each link. tcp and rxe share an address, so their ports differ.
listener() { # LINK OFFSET: transport/address/port
  case $1 in
    tcp) echo "tcp/10.0.0.1/$((4430 + $2))" ;;
    *) echo "rdma/$(address "$1")/$((4420 + $2))" ;;
  esac
}
set -- $LINKS
IFS=/ read -r TRTYPE ADDR PORT <<<"$(listener "$1" 0)"; shift
for l; do TARGET_LISTENERS="$TARGET_LISTENERS $(listener "$l" 0)"; done
target_start
(
  NQN=$REFERENCE TARGET=nvmet TARGET_LISTENERS='' NULL_PREFIX=reference
  set -- $LINKS
  IFS=/ read -r TRTYPE ADDR PORT <<<"$(listener "$1" 1)"; shift
  for l; do TARGET_LISTENERS="$TARGET_LISTENERS $(listener "$l" 1)"; done
  nvmet_start
)

declare -A DEVICE
ours_nqn=$NQN
# select_target TARGET LINK: selects one of the targets and a link for host_connect.
select_target() {
  case $1 in
    target) NQN=$ours_nqn; IFS=/ read -r TRTYPE ADDR PORT <<<"$(listener "$2" 0)" ;;
    reference) NQN=$REFERENCE; IFS=/ read -r TRTYPE ADDR PORT <<<"$(listener "$2" 1)" ;;
  esac
}
connect() { # WHO LINK
  local n nsid backend
  select_target "$1" "$2"
  host_connect --nr-io-queues=1 --queue-size=128 --keep-alive-tmo=60
  for n in "${NAMESPACES[@]}"; do
    IFS=: read -r nsid backend _ <<<"$n"
    DEVICE[$1-$backend]=$(namespace_device "$nsid")
  done
}
# widen TARGET LINK QUEUES: makes that many queues in all, used in turn.
widen() {
  local p
  select_target "$1" "$2"
  while [ "$(controllers | wc -l)" -lt "$3" ]; do
    host_connect_again nr_io_queues=1,queue_size=128,keep_alive_tmo=60
  done
  for p in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >"$p"; done
}
busy() { awk '/^cpu /{print $2 + $3 + $4 + $7 + $8}' /proc/stat; }
# times: user and system time of our target in ticks of 10 ms
times() { awk '{sub(/.*\) /, ""); print $12, $13}' "/proc/$TPID/stat"; }

measure() { # WHO LINK NAME BYTES BACKEND FIO-OPTIONS...: prints a record
  local who=$1 link=$2 name=$3 size=$4 dev=${DEVICE[$1-$5]} user system user1 system1 busy0 busy1
  shift 5
  read -r user system <<<"$(times)"; busy0=$(busy)
  # shellcheck disable=SC2068
  fio --name=m --filename="$dev" --direct=1 --ioengine=io_uring --thread --norandommap --size=64M \
    --group_reporting --unified_rw_reporting=mixed --time_based --runtime="$SECONDS_EACH" \
    --lat_percentiles=1 --clat_percentiles=0 --output-format=json --output=/tmp/m.json \
    $@ >/tmp/fio.err 2>&1 || {
      cat /tmp/fio.err; grep -v '^[[:space:]"{}]' /tmp/m.json | head -n 20
      fail "fio, $who over $link: $name"
    }
  read -r user1 system1 <<<"$(times)"; busy1=$(busy)
  # nvmet has no process, so it has no CPU time of its own.
  sed -n '/^{/,$p' /tmp/m.json | jq -c --arg link "$link$GROUP_SUFFIX" --arg name "$name" \
    --arg who "$who" --argjson size "$size" --argjson user $((user1 - user)) \
    --argjson system $((system1 - system)) --argjson busy $((busy1 - busy0)) '
    .jobs[0].mixed as $r | $r.lat_ns.percentile as $p |
    {group: $link, workload: $name, size: $size, who: $who, figures: ({
      iops: $r.iops, mib_s: ($r.bw_bytes / 1048576), machine_us: ($busy * 10000 / $r.total_ios),
      p50_us: ($p["50.000000"] / 1000), p99_us: ($p["99.000000"] / 1000),
      "p99.9_us": ($p["99.900000"] / 1000), max_us: ($r.lat_ns.max / 1000)
    } + if $who == "target" then {
      user_us: ($user * 10000 / $r.total_ios), system_us: ($system * 10000 / $r.total_ios)
    } else {} end)}'
}

# perftest PROGRAM LINK BYTES OPTIONS...: prints the number of operations per second. Both ends are
# here. The rates and latencies of perftest depend on a clock that it measures, often wrongly, in
# this kernel; the number of operations does not. It counts over both of the two seconds: the margin
# at either end is a quarter of them, in whole seconds.
perftest() {
  local program=$1 bytes=$3 at server
  local options=(-d "${2}0" -R -F -s "$3" -D 2 "${@:4}")
  at=$(address "$2")
  for _ in 1 2 3; do # on a busy machine the two ends may miss each other
    timeout 30 "$program" "${options[@]}" >/tmp/perftest-server 2>&1 & server=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
      sleep 0.2
      if timeout 20 "$program" "${options[@]}" "$at" >/tmp/perftest 2>&1; then break; fi
    done
    if wait $server; then
      awk -v bytes="$bytes" '$1 == bytes && $2 > 0 {print $2 / 2}' /tmp/perftest
      return
    fi
  done
  cat /tmp/perftest-server /tmp/perftest >&2
  fail "$program over $2"
}
limit() { # LINK NAME BYTES FIGURE VALUE: prints a record
  jq -nc --arg link "$1$GROUP_SUFFIX" --arg name "$2" --argjson size "$3" --arg figure "$4" \
    --argjson value "$5" \
    '{group: $link, workload: $name, size: $size, who: "limit", figures: {($figure): $value}}'
}
throughput() { # LINK PROGRAM SIZE NAME OPTIONS...: of a program of perftest
  local bytes n
  bytes=$(numfmt --from=iec "$3")
  n=$(perftest "$2" "$1" "$bytes" "${@:5}")
  limit "$1" "$2 $3$4" "$bytes" mib_s \
    "$(awk -v n="$n" -v b="$bytes" 'BEGIN {print n * b / 1048576}')"
}
limits() { # LINK: the verbs without NVMe
  local program n
  if [ "$LAB_VM" = uml ]; then
    for program in ib_write_bw ib_read_bw; do
      throughput "$1" $program 128K ""
      throughput "$1" $program 1M ""
      throughput "$1" $program 128K " QD 16" -t 16 # as many in flight as in the rows
    done
  fi
  # Both ends poll, which on one CPU would measure time slices.
  [ "$(nproc)" -gt 1 ] || return 0
  n=$(perftest ib_send_lat "$1" 64)
  limit "$1" "ib_send_lat 64 bytes" 64 latency_us "$(awk -v n="$n" 'BEGIN {print 1000000 / n / 2}')"
}

round() { # LINK QUEUES: measures every row with that many queues, the sides in alternating order
  local link=$1 queues=$2 name size backend n options who
  while IFS='|' read -r name size backend n options <&3; do
    [ "$n" = "$queues" ] || continue
    order="target reference"; [ $((r % 2)) = 1 ] || order="reference target"
    for who in $order; do
      measure "$who" "$link" "$name" "$size" "$backend" "$options" >>$RECORDS
    done
  done 3</tmp/works
}

wanted >/tmp/works
[ -s /tmp/works ] || fail "no workload matches $RUN"
{
  echo "#rounds $ROUNDS $SECONDS_EACH"
  echo "# In the lab: Linux $(uname -r) as a $LAB_VM guest; host and targets share $(nproc) CPU."
  if [ "$LAB_VM" = uml ]; then
    echo "# CPU time of the target is that of its process; user-mode Linux counts all of it as"
    echo "# kernel time. nvmet has no process: its kernel threads cannot be told from those of"
    echo "# the host. Compare the time of the machine per I/O, which includes both sides."
    echo "# null rows: our null backend and plain null_blk. All others: our ram backend and"
    echo "# memory-backed null_blk."
    echo "# 4 and 16 queues: Linux makes at most one queue per CPU and controller, so each has a"
    echo "# controller of its own, used in turn."
    echo "# perftest: both ends here, one side polls; 128 in flight, QD 16: 16, from and into the"
    echo "# same 128K or 1M again and again, which stays in caches."
  fi
} >$RECORDS
for l in $LINKS; do
  for who in target reference; do
    connect $who "$l"
    # Both ram namespaces are written completely: no read finds a hole.
    dd if=/dev/zero of="${DEVICE[$who-ram]}" bs=1M count=64 oflag=direct status=none
    measure $who "$l" warm-up 4096 ram --rw=randread --bs=4k --iodepth=32 >/dev/null
  done
  for n in 1 4 16; do
    grep -q "^[^|]*|[^|]*|[^|]*|$n|" /tmp/works || continue
    if [ $n -gt 1 ]; then widen target "$l" $n; widen reference "$l" $n; fi
    for r in $(seq "$ROUNDS"); do
      echo "$l, $n queues, round $r of $ROUNDS" >$OUT/round
      if [ $n = 1 ] && [ "$l" != tcp ]; then limits "$l" >>$RECORDS; fi
      round "$l" $n
    done
  done
  for who in target reference; do select_target $who "$l"; host_disconnect; done
done
