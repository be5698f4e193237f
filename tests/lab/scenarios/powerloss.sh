# Crash consistency by replay: the disks below three namespaces, a block device and files on ext4
# and on xfs, are logged by dm-log-writes while the host writes, zeroes and flushes. Each log gives
# 200 power failures (in a sample 50), at every flush and write with FUA, with any part of the data
# in the cache of the disk. Data acknowledged as durable is there. Then the disks ignore flushes and
# FUA: the same check must fail.
# variants: tcp rxe
# covers: backend/file backend/block backend/disk internal/uring
# go-test: ./tests/lab/crash
# limit: 450
. "$LAB_DIR/lib.sh"
need dmsetup
mib=24
names=(block ext4 xfs)
sectors=$((mib * 2048))
failures=$([ -z "$SAMPLE" ] && echo 200 || echo 50)
dm slice-scratch "0 $sectors linear /dev/ram1 0"

# disks_up: a logged disk for each namespace, which reads as zeroes; disks_down completes the logs.
disks_up() {
  local i at name
  for i in 0 1 2; do
    name=${names[$i]} at=$(((i + 1) * 1024 * 2048))
    dm "data-$name" "0 $sectors linear /dev/ram1 $at"
    blkdiscard -f -z "/dev/mapper/data-$name" 2>/dev/null
    dm "log-$name" "0 $((900 * 2048)) linear /dev/ram1 $((at + sectors))"
    dm "disk-$name" "0 $sectors log-writes /dev/mapper/data-$name /dev/mapper/log-$name"
    mkdir -p "/run/$name"
    case $name in
      ext4)
        mkfs.ext4 -q -F -b 4096 -J size=4 -E nodiscard /dev/mapper/disk-ext4
        mount /dev/mapper/disk-ext4 /run/ext4 ;;
      xfs)
        mkfs.xfs -q -f -K --unsupported /dev/mapper/disk-xfs 2>/dev/null
        mount /dev/mapper/disk-xfs /run/xfs ;;
    esac
  done
}
disks_down() {
  local name
  umount /run/ext4 /run/xfs
  for name in "${names[@]}"; do
    dmsetup remove "disk-$name" || fail "the target still uses $name"
  done
}
forget() {
  local name
  for name in "${names[@]}"; do dmsetup remove "data-$name" "log-$name"; done
}
write_all() { # OPERATIONS of each of eight threads
  local i name pids=()
  for i in 0 1 2; do
    name=${names[$i]}
    CRASH_DEV=$(namespace_device $((i + 1))) CRASH_DM=disk-$name CRASH_SEED=$((SEED + i)) \
      CRASH_OPS=$1 CRASH_JOURNAL=/tmp/$name.journal \
      "$TEST_BIN" -test.run TestWrite -test.v >"/tmp/$name.write" 2>&1 & pids+=($!)
  done
  for i in 0 1 2; do
    wait "${pids[$i]}" || { cat "/tmp/${names[$i]}.write"; fail "the writer on ${names[$i]}"; }
  done
}
replay() { # NAME: the result is in /tmp/NAME.replay
  local fs=$1; [ "$fs" != block ] || fs=''
  CRASH_LOG=/dev/mapper/log-$1 CRASH_SIZE=$((mib << 20)) CRASH_JOURNAL=/tmp/$1.journal \
    CRASH_COUNT=$failures CRASH_FS=$fs CRASH_SCRATCH=/dev/mapper/slice-scratch \
    "$TEST_BIN" -test.run TestReplay -test.v >"/tmp/$1.replay" 2>&1
}

NAMESPACES=(1:block::/dev/mapper/disk-block 2:file:8MiB:/run/ext4/1.img:4096
  3:file:8MiB:/run/xfs/1.img:4096)
SEED=${SAMPLE:-$((0x$(head -c 4 /dev/urandom | xxd -p) % 1000000))}
say "seed $SEED"
disks_up; lab_up; target_start; host_connect
write_all 150
host_disconnect; target_stop; disks_down
for name in "${names[@]}"; do
  replay "$name" || { cat "/tmp/$name.replay"; fail "$name: durable data is lost"; }
  say "$name: $(sed -n 's/^ *lab_test.go:[0-9]*: //p' "/tmp/$name.replay")"
done
forget

say "the disks ignore flushes and FUA from now on"
disks_up; target_start; host_connect
for name in "${names[@]}"; do
  echo "write through" >"/sys/block/$(dm_block "disk-$name")/queue/write_cache"
done
write_all 40
host_disconnect; target_stop; disks_down
failures=200 # all: it must not be missed
for name in "${names[@]}"; do
  ! replay "$name" || fail "$name: the check does not notice that flushes do nothing"
  grep -q 'acknowledged as durable, and lost' "/tmp/$name.replay" ||
    { cat "/tmp/$name.replay"; fail "$name: it fails for another reason"; }
  say "$name: $(grep -m1 -o 'crash [0-9]*, after.*' "/tmp/$name.replay")"
done
forget
klog_check 'callbacks suppressed|long keepalive RTT' # mount; a busy machine
