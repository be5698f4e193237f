# Discovery, connect, reads, writes and disconnect, captured on the wire: tshark decodes every frame.
# variants: rxe siw tcp
# limit: 120
. "$LAB_DIR/lib.sh"
need tcpdump tshark
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
case $TOPOLOGY-$LINK in
  two-*) port=veth1 ;;
  loop-rxe) skip "soft RoCE with itself uses no network interface: nothing to capture" ;;
  loop-*) port=lo ;;
esac
tcpdump -i $port -U -s 0 -B 16384 -w /run/capture.pcap 2>/run/tcpdump.log & dump=$!
wait_for 10 grep -q listening /run/tcpdump.log
discover >/dev/null
case $LINK in tcp) options="--hdr-digest --data-digest" ;; *) options='' ;; esac
# shellcheck disable=SC2086  # options
host_connect $options
fio_verify capture --iodepth=4 --bs=4k --size=256k
fio_verify capture-large --iodepth=2 --bs=128k --size=512k
nvme id-ctrl "/dev/$CTRL" >/dev/null
host_disconnect
frames_written() { [ "$(stat -c %s /run/capture.pcap)" = "${size:-}" ] || { size=$(stat -c %s /run/capture.pcap); return 1; }; }
wait_for 10 frames_written
kill -INT $dump; wait $dump || true
grep -E 'captured|dropped' /run/tcpdump.log
grep -q '^0 packets dropped by kernel' /run/tcpdump.log || fail "tcpdump lost packets"
cp /run/capture.pcap $OUT/capture.pcap

decode() { tshark -n -r /run/capture.pcap -d tcp.port==$PORT,$1 "${@:2}" 2>/run/tshark.log; }
case $LINK in
  tcp) as=nvme-tcp; layer=nvme-tcp ;;
  siw) as=iwarp_mpa; layer=iwarp-ddp-rdmap ;;
  rxe) as=nvme-tcp; layer=infiniband ;;
esac
decode $as -q -z io,phs | grep -E 'frames'
bad=$(decode $as -Y '_ws.malformed || _ws.short' | head -n 5)
[ -z "$bad" ] || fail "malformed frames:
$bad"
count=$(decode $as -Y "$layer" | wc -l)
[ "$count" -gt 100 ] || fail "only $count frames decoded as $layer"
case $LINK in
  tcp)
    bad=$(decode $as -Y 'nvme-tcp.hdgst.status == 0 || nvme-tcp.ddgst.status == 0' | head -n 5)
    [ -z "$bad" ] || fail "wrong digests:
$bad" ;;
  rxe)
    count=$(decode $as -Y nvme-rdma | wc -l)
    [ "$count" -gt 50 ] || fail "only $count frames decoded as NVMe over RDMA" ;;
esac
say "$count frames decoded, none malformed"
