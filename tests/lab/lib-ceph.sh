# A small Ceph cluster inside the lab's kernel: one monitor and one OSD that has its objects in
# memory, with cephx. It is at the target's end, or at that of the host with another CEPH_ADDR.
# cephtest has the same for Go.
CEPH=/run/ceph CEPH_MON='' CEPH_OSD='' CEPH_ADDR=127.0.0.1
ceph_conf() { # FSID
  cat <<EOF
[global]
fsid = $1
mon_host = [v2:$CEPH_ADDR:13300,v1:$CEPH_ADDR:13301]
mon_initial_members = a
public_addr = $CEPH_ADDR
cluster_addr = $CEPH_ADDR
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_data_avail_warn = 2
mon_data_avail_crit = 1
run_dir = $CEPH
keyring = $CEPH/\$name.keyring
admin_socket =
pid_file =
log_file = $CEPH/\$name.log
ms_bind_ipv6 = false
[client]
log_file =
[mon.a]
mon_data = $CEPH/mon
keyring = $CEPH/mon.keyring
[osd.0]
osd_data = $CEPH/osd
osd_objectstore = memstore
memstore_device_bytes = 1073741824
osd_op_num_shards = 2
osd_pool_default_read_lease_ratio = 100000
EOF
}
# of_ceph PROGRAM ARGUMENTS...: runs a program of Ceph. Its output is shown if it fails.
of_ceph() {
  (ceph_exec "$@" -c $CEPH/ceph.conf) >$CEPH/out 2>$CEPH/err ||
    { cat $CEPH/out $CEPH/err; tail -n 20 $CEPH/*.log; fail "$*"; }
}
ceph_exec() { if [ $CEPH_ADDR = 127.0.0.1 ]; then target_exec "$@"; else exec "$@"; fi; }
daemon() { # PROGRAM NAME: runs it in the background, and sets $DAEMON
  ceph_exec "$1" -f -i "$2" -c $CEPH/ceph.conf >/dev/null 2>>$CEPH/err.$1 &
  DAEMON=$!
}
ceph_need() {
  local c
  for c in ceph-mon ceph-osd ceph rbd; do
    command -v $c >/dev/null || skip "no $c: apt-get install ceph-mon ceph-osd ceph-common"
  done
}
# ceph_up: boots a cluster with the pool "rbd". It sets CEPH_MON and CEPH_OSD, their process IDs.
ceph_up() {
  local id
  ceph_need
  mkdir -p $CEPH/osd; id=$(cat /proc/sys/kernel/random/uuid)
  ceph_conf "$id" >$CEPH/ceph.conf
  of_ceph ceph-authtool -C $CEPH/mon.keyring --gen-key -n mon. --cap mon 'allow *'
  of_ceph ceph-authtool -C $CEPH/client.admin.keyring --gen-key -n client.admin \
    --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  of_ceph ceph-authtool $CEPH/mon.keyring --import-keyring $CEPH/client.admin.keyring
  of_ceph monmaptool --create --addv a "[v2:$CEPH_ADDR:13300,v1:$CEPH_ADDR:13301]" --fsid "$id" \
    $CEPH/monmap
  of_ceph ceph-mon --mkfs -i a --monmap $CEPH/monmap --keyring $CEPH/mon.keyring
  daemon ceph-mon a; CEPH_MON=$DAEMON
  of_ceph ceph osd new "$id"
  of_ceph ceph auth get-or-create osd.0 mon 'allow profile osd' osd 'allow *'
  cp $CEPH/out $CEPH/osd.0.keyring
  of_ceph ceph-osd -i 0 --mkfs --osd-uuid "$id"
  daemon ceph-osd 0; CEPH_OSD=$DAEMON
  of_ceph ceph osd pool create rbd 8
  of_ceph ceph osd pool application enable rbd rbd
}
ceph_down() {
  local p
  for p in $CEPH_OSD $CEPH_MON; do kill -KILL $p; wait $p || true; done 2>/dev/null
}
