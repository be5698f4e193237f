# Inside the lab's kernel: the target on ports 4420 and nvmet on 4421, both connected at once, measured by turns.
# Our null namespace stands against a plain null_blk, our ram namespace against a memory-backed one.
TOPOLOGY=loop
. "$LAB_DIR/lib.sh"
LINKS=${LINKS//,/ } ROUNDS=${ROUNDS:-5} SECONDS_EACH=${SECONDS_EACH:-3}
REFERENCE=$NQN-reference
WORKS="null:1 null:32 ram:1 ram:32"
NAMESPACES=(1:null:1GiB 2:ram:256MiB)

address() { case $1 in siw) echo 10.0.1.1 ;; *) echo 10.0.0.1 ;; esac; }
link_up() { # NAME N
  ip link add "v$1" type veth peer name "w$1"; ip link set "w$1" mtu 4200 up; ip link set "v$1" mtu 4200 up
  ip addr add "10.0.$2.1/24" dev "v$1"
}
link_up a 0
for l in $LINKS; do
  case $l in
    rxe) LINK=rxe rdma_link rxe0 va "" ;;
    siw) link_up b 1; LINK=siw rdma_link siw0 vb "" ;;
  esac
done

# One target with a listener for each link; the ports of tcp differ from those of rdma, which share the address.
listener() { # LINK OFFSET: transport/address/port
  case $1 in tcp) echo "tcp/10.0.0.1/$((4430 + $2))" ;; *) echo "rdma/$(address "$1")/$((4420 + $2))" ;; esac
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
connect() { # WHO NQN LINK OFFSET
  local n
  NQN=$2; IFS=/ read -r TRTYPE ADDR PORT <<<"$(listener "$3" "$4")"
  host_connect --nr-io-queues=1 --queue-size=128
  for n in "${NAMESPACES[@]}"; do
    IFS=: read -r nsid backend _ <<<"$n"
    DEVICE[$1-$3-$backend]=$(namespace_device "$nsid")
  done
}
ours_nqn=$NQN
busy() { awk '/^cpu /{print $2 + $3 + $4 + $7 + $8}' /proc/stat; }

measure() { # WHO LINK BACKEND DEPTH
  local dev=${DEVICE[$1-$2-$3]} cpu0 cpu1 busy0 busy1
  cpu0=$(target_cpu) busy0=$(busy)
  fio --name=m --filename="$dev" --direct=1 --ioengine=io_uring --thread --norandommap --rw=randread --bs=4k --iodepth="$4" --size=256M \
    --time_based --runtime="$SECONDS_EACH" --lat_percentiles=1 --clat_percentiles=0 --output-format=json --output=/tmp/m.json >/tmp/fio.err 2>&1 || { cat /tmp/fio.err; fail "fio on $1 $2 $3"; }
  cpu1=$(target_cpu) busy1=$(busy)
  jq -r --arg key "$2 $3 $4 $1" --argjson cpu "$((${cpu1:-0} - ${cpu0:-0}))" --argjson busy "$((busy1 - busy0))" '.jobs[0].read as $r |
    "\($key) \($r.iops) \($r.lat_ns.percentile["50.000000"] / 1000) \($r.lat_ns.percentile["99.000000"] / 1000) \($cpu * 10000 / $r.total_ios) \($busy * 10000 / $r.total_ios)"' /tmp/m.json
}

: >/tmp/results
for l in $LINKS; do
  connect ours "$ours_nqn" "$l" 0; connect nvmet "$REFERENCE" "$l" 1
  # Both ram namespaces are full: no read finds a hole.
  for who in ours nvmet; do dd if=/dev/zero of="${DEVICE[$who-$l-ram]}" bs=1M count=256 oflag=direct status=none; done
  for work in $WORKS; do
    SECONDS_EACH=1 measure ours "$l" "${work%:*}" "${work#*:}" >/dev/null
    for round in $(seq "$ROUNDS"); do
      order="ours nvmet"; [ $((round % 2)) = 1 ] || order="nvmet ours"
      for who in $order; do measure $who "$l" "${work%:*}" "${work#*:}" | tee -a /tmp/results; done
    done
  done
  NQN=$ours_nqn; host_disconnect; NQN=$REFERENCE; host_disconnect
done

awk '
  function median(key, col,    n, i, j, t, v) {
    n = count[key]; for (i = 1; i <= n; i++) v[i] = value[key, i, col]
    for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j-1] > v[j]; j--) { t = v[j]; v[j] = v[j-1]; v[j-1] = t }
    low = v[1]; high = v[n]
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  function cell(key,    m) { m = median(key, 1); return sprintf("%7d %7d..%-7d", m, low, high) }
  { key = $1 " " $2 " " $3; if (!(key in seen)) { seen[key] = 1; order[++keys] = key }
    k = key " " $4; i = ++count[k]; for (c = 5; c <= 9; c++) value[k, i, c - 4] = $c }
  END {
    print "4 KiB random read, one queue, IOPS: median min..max. Latency p50/p99 in us. CPU in us per I/O: the target process / all of the machine."
    printf "%-5s %-5s %3s  %-25s %-25s %6s  %-17s %-17s %-17s %s\n", "link", "disk", "QD", "nvmf-target", "nvmet", "ratio", "ours p50/p99", "nvmet p50/p99", "ours CPU", "nvmet CPU"
    for (n = 1; n <= keys; n++) {
      split(order[n], f, " "); a = order[n] " ours"; b = order[n] " nvmet"
      printf "%-5s %-5s %3s  %s %s %6.2f  %-17s %-17s %-17s %s\n", f[1], f[2], f[3], cell(a), cell(b), median(a, 1) / median(b, 1),
        sprintf("%.1f/%.1f", median(a, 2), median(a, 3)), sprintf("%.1f/%.1f", median(b, 2), median(b, 3)),
        sprintf("%.1f/%.1f", median(a, 4), median(a, 5)), sprintf("-/%.1f", median(b, 5))
    }
    print "null: our null backend against plain null_blk. ram: our ram backend against memory-backed null_blk."
  }' /tmp/results | tee $OUT/table
