# nvmet in configfs, and a file that nvmetcli saves of it, are converted with the same result, and our
# target takes the place of nvmet: the same host, with the same command line, finds the same
# namespaces with the same data. Then back to nvmet, by its file, and over once more, while the host
# stays connected, has a file system mounted, and fio writes and verifies. TARGET=nvmet restores the
# file each time.
# variants: tcp rxe
# covers: internal/convert config config/lang nvme/target
# cpus: 2
# limit: 540
# unpack: nvmetcli python3-configshell-fb python3-pyparsing
TOPOLOGY=wire # that of nvmet
. "$LAB_DIR/lib.sh"
need dmsetup python3
python() { PYTHONPATH=$UNPACKED/usr/lib/python3/dist-packages python3 "$@"; }
nvmetcli() { python "$UNPACKED/usr/bin/nvmetcli" "$@"; }
# Debian may change or drop it; the conversion itself has tests of its own.
python -c 'import configshell, nvmet' 2>/run/err ||
  skip "nvmetcli of Debian testing does not run here: $(tail -n 1 /run/err)"
cfg=/sys/kernel/config/nvmet
disk_up
dm lab "0 65536 linear /dev/ram1 0"
disk=$(null_disk convert size=16 memory_backed=1 blocksize=4096)
# The last one has no NGUID, and the UUID that nvmet has made for it.
NAMESPACES=(1:block::/dev/mapper/lab 5:file:16MiB:/run/disk/5.img "7:block::$disk")
OTHER=nqn.2026-11.io.nvmf-target:other
ALLOWED="$HOSTNQN $OTHER"
lab_up

say "nvmet"
key=$(nvme gen-dhchap-key --hmac=1 --nqn=$HOSTNQN) ctrl_key=$(nvme gen-dhchap-key --hmac=1)
connect() { host_connect --dhchap-secret="$key" --dhchap-ctrl-secret="$ctrl_key" "$@"; }
namespace() { # NSID ATTRIBUTE=VALUE...: nvmet changes no namespace that is enabled
  local ns=$sub/namespaces/$1 a; shift
  echo 0 >"$ns/enable"
  for a; do echo "${a#*=}" >"$ns/${a%=*}"; done
  echo 1 >"$ns/enable"
}
nvmet_start; nvmet_kill
sub=$cfg/subsystems/$NQN port=$cfg/ports/1 host=$cfg/hosts/$HOSTNQN
echo lab-4711 >"$sub/attr_serial"; echo "A model" >"$sub/attr_model"
echo 10 >"$sub/attr_cntlid_min"; echo 100 >"$sub/attr_cntlid_max"
echo "$key" >"$host/dhchap_key"; echo "$ctrl_key" >"$host/dhchap_ctrl_key"
echo ffdhe2048 >"$host/dhchap_dhgroup"
namespace 1 device_uuid=d592cdf3-5d1c-44e0-8412-3fcf7d99df27 \
  device_nguid=ef90689c-6c46-d44c-89c1-4067801309a8
# Buffered, nvmet sometimes failed reads of the file (0/6h); nvmetcli does not save that setting.
namespace 5 device_nguid=ef90689c-6c46-d44c-89c1-4067801309a9 ana_grpid=2 buffered_io=0
mkdir "$sub/namespaces/9" $port/ana_groups/2 # 9 stays disabled
echo non-optimized >$port/ana_groups/2/ana_state
nvmet_restart
nvmetcli save /run/nvmet.json
convert() { # NAME [FILE]: the result is in NAME.yaml, and the list of the omissions in NAME.notes
  (umask 077; "$TARGET_BIN" convert nvmet "${@:2}" >/run/$1.yaml) 2>/run/$1.errors ||
    { cat /run/$1.errors; fail "convert: exit code $?"; }
  cut -d ' ' -f 2- /run/$1.errors >/run/$1.notes
}
[ "$TARGET" = nvmet ] || convert live

# The state seen by the host that must stay, the content of its namespaces, and the rest.
seen() {
  local n d
  nvme id-ctrl "/dev/$CTRL" -o json | jq -c '{subnqn, sn, mn}'
  for n in "${NAMESPACES[@]}"; do
    d=$(namespace_device "${n%%:*}")
    (cd "/sys/block/${d#/dev/}" &&
      grep -s . nsid uuid nguid eui wwid size queue/{logical,physical}_block_size) || true
    nvme id-ns "$d" -o json |
      jq -c '{nsze, ncap, flbas, nguid, eui64, anagrpid, ds: .lbafs[.flbas % 16].ds}'
  done
  for d in "/sys/class/nvme/$CTRL"/nvme*c*n*; do
    (cd "$d" && echo "path: $(cat nsid ana_grpid ana_state | tr '\n' ' ')")
  done | sort
}
data() { # NSID...
  local nsid
  for nsid; do sha256sum <"$(namespace_device "$nsid")"; done
}
rest() { nvme id-ctrl "/dev/$CTRL" -o json | jq -c 'del(.psds, .subnqn, .sn, .mn)'; }
same() { # FILE COMMAND...: the output of the command equals FILE
  local file=$1; shift
  "$@" >/run/now
  diff "$file" /run/now || fail "the host sees other things than at nvmet: $*"
}
connect
mkdir /tmp/fs; mkfs.ext4 -q "$DEV"; mount "$DEV" /tmp/fs
head -c 8M /dev/urandom >/tmp/fs/file; sum=$(sha256sum </tmp/fs/file); umount /tmp/fs
files() { [ "$(sha256sum </tmp/fs/file)" = "$sum" ] || fail "the file differs"; }
pattern=(pattern --bs=16k --iodepth=8 --size=4M)
fio_on 5 "${pattern[@]}"; fio_on 7 "${pattern[@]}"
seen >/run/seen; data 1 5 7 >/run/data; rest >/run/rest
cat /run/seen
grep -q "^wwid:uuid.d592cdf3" /run/seen || fail "the host does not see what was configured"
host_disconnect
nvmetcli clear

start() {
  if [ "$TARGET" = nvmet ]; then nvmetcli restore /run/nvmet.json; else ours_start; fi
}
stop() { if [ "$TARGET" = nvmet ]; then nvmetcli clear; else ours_stop; fi; }
if [ "$TARGET" = ours ]; then
  say "converted"
  convert converted /run/nvmet.json
  diff -I '^#' /run/live.yaml /run/converted.yaml || # comments have the places in the source
    fail "configfs gives another result than the file"
  diff /run/live.notes /run/converted.notes || fail "configfs gives other notes than the file"
  cat /run/converted.errors
  diff /run/converted.notes <(
    echo "there are keys in the result: nobody else may read it (chmod 600)"
    echo "left out: namespace 9 of $NQN, which is not enabled") || fail "other notes than these"
  "$TARGET_BIN" check /run/converted.yaml
  target_config() { cat /run/converted.yaml; }
fi
start
connect
same /run/seen seen; same /run/data data 1 5 7
rest | jq -cM --slurpfile nvmet /run/rest '$nvmet[0] as $n |
  with_entries(select(.value != $n[.key]) | .value = "\($n[.key]) -> \(.value)")'
cntlid=$(cat "/sys/class/nvme/$CTRL/cntlid")
[ "$cntlid" -ge 10 ] && [ "$cntlid" -le 100 ] || fail "controller ID $cntlid"
DEV=$(namespace_device 5)
fio_run "${pattern[@]}" --rw=randread --verify=crc32c --verify_fatal=1 --verify_only --norandommap=0
host_disconnect
stop
klog_check

say "back to nvmet"
nvmetcli restore /run/nvmet.json
connect --reconnect-delay=1
same /run/seen seen; same /run/data data 1 5 7

say "over while the host is connected"
mount "$(namespace_device 1)" /tmp/fs
DEV=$(namespace_device 7)
load over --bs=16k --iodepth=8 --size=4M --time_based --runtime=3
wait_for 20 load_moved 100
nvmetcli clear
wait_for 30 ctrl_lost
start
wait_for 30 ctrl_live
wait_for 20 load_moved 100
load_ends
echo 3 >/proc/sys/vm/drop_caches
files; cp /tmp/fs/file /tmp/fs/copy; umount /tmp/fs
same /run/seen seen
if klog_has "identifiers changed"; then fail "the host takes a namespace for another one"; fi
e2fsck -fn "$(namespace_device 1)" >/tmp/check 2>&1 || { cat /tmp/check; fail "ext4 is damaged"; }
host_disconnect
stop
