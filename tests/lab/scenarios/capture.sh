# Discovery, connect, reads, writes and disconnect, captured on the wire: tshark decodes each frame.
# variants: rxe siw tcp
# soak: soft
# covers: nvme fabric/tcp/pdu fabric/rdma fabric/rdma/cmwire
. "$LAB_DIR/lib.sh"
need tcpdump tshark
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
[ "$TOPOLOGY" != loop ] || skip "no network between host and target: nothing to capture"
tcpdump -i veth1 -U -s 0 -B 16384 -w /run/capture.pcap 2>/run/tcpdump.log & dump=$!
wait_for 10 grep -q listening /run/tcpdump.log
discover >/dev/null
case $LINK in tcp) options="--hdr-digest --data-digest" ;; *) options='' ;; esac
# shellcheck disable=SC2086  # options
host_connect $options
fio_verify capture --iodepth=4 --bs=4k --size=256k
fio_verify capture-large --iodepth=2 --bs=128k --size=512k
nvme id-ctrl "/dev/$CTRL" >/dev/null
host_disconnect
size=''
size_stable() {
  local before=$size
  size=$(stat -c %s /run/capture.pcap)
  [ "$size" = "$before" ]
}
wait_for 10 size_stable
kill -INT $dump; wait $dump || true
grep -E 'captured|dropped' /run/tcpdump.log
grep -q '^0 packets dropped by kernel' /run/tcpdump.log || fail "tcpdump lost packets"
cp /run/capture.pcap $OUT/capture.pcap

# Two registered ports would hide iWARP: it is recognised by its first frame, before the port.
case ${LINK/soft/$SOFT_HOST} in
  tcp) layer=nvme-tcp options="-d tcp.port==$PORT,nvme-tcp" ;;
  siw)
    layer=iwarp_ddp_rdmap
    options="-o tcp.try_heuristic_first:TRUE --disable-protocol nvme-tcp" ;;
  rxe) layer=nvme-rdma options='' ;;
esac
# shellcheck disable=SC2086  # options
decode() { tshark -n -r /run/capture.pcap $options "$@" 2>/run/tshark.log; }
none() { # WHAT FILTER
  local bad
  bad=$(decode -Y "$2" | head -n 5)
  [ -z "$bad" ] || fail "$1:
$bad"
}
decode -q -z io,phs | grep frames
none "malformed frames" '_ws.malformed || _ws.short'
[ $LINK != tcp ] || none "wrong digests" 'nvme-tcp.hdgst.status == 0 || nvme-tcp.ddgst.status == 0'
count=$(decode -Y "$layer" | wc -l)
[ "$count" -gt 100 ] || fail "only $count frames decoded as $layer"
say "$count frames decoded as $layer, none malformed"
