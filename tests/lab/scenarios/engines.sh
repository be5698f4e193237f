# The engines of disks, by configuration: threads and io_uring. Each is checked to be in use, and fio
# verifies through it, on a drive and on a file. Then a target without the right to lock memory says
# so once, and works.
# variants: tcp rxe
# covers: internal/uring internal/sys backend/disk backend/block internal/reactor
# go-test: ./backend/block
# limit: 720
. "$LAB_DIR/lib.sh"
node=$(null_disk engines size=128 memory_backed=1 blocksize=4096 discard=1 submit_queues=1)
rings() { find "/proc/$TPID/fd" -lname 'anon_inode:\[io_uring\]' | wc -l; }

disk_up
target_config() {
  cat <<EOT
listeners: [{transport: $TRTYPE, address: "$ADDR", port: $PORT}]
reactors: {count: 1}
disks: {$disks}
subsystems:
  - nqn: $NQN
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: block, path: $node}
      - {nsid: 2, backend: file, path: /run/disk/2.img, size: 64MiB, block_size: 4096}
EOT
}
NAMESPACES=(1 2)
# with KEYS: starts the target with these keys. verified: fio finds no error.
with() { disks=$1; say "disks: {$1}"; target_start; host_connect; }
verified() {
  local nsid
  for nsid in 1 2; do
    for work in 4k:4M 64k:16M; do
      fio_on $nsid "ns$nsid-${work%:*}" --iodepth=32 --bs=${work%:*} --size=${work#*:}
    done
  done
}
without() { host_disconnect; target_stop; }
lab_up

with "engine: threads"
verified
[ "$(rings)" = 0 ] || fail "threads have $(rings) rings"
without
with "engine: io_uring"
verified
[ "$(rings)" = 1 ] || fail "io_uring: $(rings) rings"
without
! log_has "cannot be registered" || fail "memory was not registered"

if [ "$TRANSPORT" = tcp ] || [ -n "$SAMPLE" ]; then
  NVMF_TEST_BLOCK=$node "$TEST_BIN" -test.v -test.run 'TestDevice/^io_uring$' -test.timeout 100s \
    >/run/conf.log 2>&1 ||
    { grep -vE '^=== RUN|--- PASS' /run/conf.log | tail -n 60; fail "the suite does not pass"; }
  grep -q '^ *--- PASS: TestDevice/io_uring' /run/conf.log || fail "the suite did not run"
  say "the suite: $(grep -c '^ *--- PASS' /run/conf.log) tests passed"

  say "1 MiB of memory may be locked, which is not enough for RDMA"
  TRTYPE=tcp
  cat >/run/unprivileged <<EOT
#!/bin/bash
ulimit -l 1024
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$TARGET_BIN" "\$@"
EOT
  chmod +x /run/unprivileged; chown -R 65534 $node /run/state; chmod 777 /run/disk /run/notify
  rm /run/disk/2.img
  TARGET_BIN=/run/unprivileged with "engine: io_uring"
  verified
  logged "memory cannot be registered"
  [ "$(log_count "memory cannot be registered")" = 1 ] ||
    fail "more than one warning that memory is not registered"
  logged LimitMEMLOCK # how to fix it
  without
fi
klog_check
