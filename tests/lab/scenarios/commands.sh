# Compare, Verify, Copy, Write Zeroes, Write Uncorrectable and Dataset Management from nvme-cli:
# contents, the status of refusals, and the state left after the target was killed.
# variants: rxe siw tcp
# soak: soft
# covers: nvme nvme/target backend/marks backend/ram backend/file
. "$LAB_DIR/lib.sh"
disk_up
NAMESPACES=(1:ram:64MiB 2:file:64MiB:/run/disk/2.img)
lab_up; target_start; host_connect
one=$DEV two=$(namespace_device 2)
dd if=/dev/urandom of=/tmp/a bs=64K count=4 status=none
dd if=/dev/urandom of=/tmp/b bs=64K count=4 status=none

# nvme_says REGEX ARGS: the output of nvme-cli; refused REGEX ARGS: with an error
nvme_says() { local want=$1; shift; nvme "$@" >/tmp/out 2>&1 || { cat /tmp/out; fail "nvme $*"; }
  grep -Eq "$want" /tmp/out || { cat /tmp/out; fail "nvme $*: not $want"; }; }
refused() { local want=$1; shift; nvme "$@" >/tmp/out 2>&1 && fail "nvme $* succeeds"
  grep -Eiq "$want" /tmp/out || { cat /tmp/out; fail "nvme $*: not $want"; }
  say "nvme $1: $(tail -n 1 /tmp/out)"; }
# unreadable ARGS: it fails with Unrecovered Read Error (2/81h), Do Not Retry, and More or not
unreadable() { refused '\(0x[46]281\)' "$@"; }
content() { # DEVICE BLOCK FILE: the 256 KiB from a block of 512 bytes on
  dd if="$1" iflag=direct bs=512 skip="$2" count=512 status=none | cmp - "$3" || fail "$1 at $2"
}
put() { dd if="$3" of="$1" oflag=direct bs=64K seek="$2" oflag=seek_bytes conv=notrunc status=none; }

nvme id-ctrl "/dev/$CTRL" -H >/tmp/id || fail "id-ctrl"
for feature in Compare Verify Copy "Data Set Management" "Write Zeroes" "Write Uncorrectable"; do
  grep -Eq "$feature Supported" /tmp/id || { cat /tmp/id; fail "no $feature"; }
done
grep -Eq "Fused Compare and Write Supported" /tmp/id || fail "no fused Compare and Write"
nvme id-ns "$one" | grep -E "^(mssrl|mcl|msrc|nacwu)"
nvme nvm-id-ctrl "/dev/$CTRL" | grep -E "^(vsl|wzsl|wusl|dm)"

for dev in "$one" "$two"; do
  put "$dev" 0 /tmp/a
  nvme_says . compare "$dev" -s 0 -c 511 -z 262144 -d /tmp/a
  refused "COMPARE_FAILED|Compare Failure" compare "$dev" -s 0 -c 511 -z 262144 -d /tmp/b
  nvme_says . verify "$dev" -s 0 -c 65535
  refused "LBA_RANGE|LBA Out of Range" verify "$dev" -s 131071 -c 1
  nvme_says . copy "$dev" --sdlba=1000 --slbs=256,0 --blocks=255,255
  cat <(tail -c 131072 /tmp/a) <(head -c 131072 /tmp/a) >/tmp/c
  content "$dev" 1000 /tmp/c
  refused 'Overlapping|187\)' copy "$dev" --sdlba=100 --slbs=0 --blocks=255
  refused "LBA_RANGE|LBA Out of Range" copy "$dev" --sdlba=131071 --slbs=0 --blocks=255
  nvme_says . write-zeroes "$dev" -s 1000 -c 511 --deac
  dd if=/dev/zero of=/tmp/zero bs=256K count=1 status=none
  content "$dev" 1000 /tmp/zero
  nvme_says . dsm "$dev" --idr --idw -s 0 -b 512
  content "$dev" 0 /tmp/a
  nvme_says . dsm "$dev" --ad -s 0 -b 512
  nvme_says . write-uncor "$dev" -s 8 -c 7
  unreadable read "$dev" -s 15 -c 0 -z 512
  unreadable verify "$dev" -s 0 -c 8
  nvme_says . verify "$dev" -s 0 -c 7
  nvme_says . verify "$dev" -s 16 -c 7
  nvme_says . write-zeroes "$dev" -s 8 -c 3
  nvme_says . verify "$dev" -s 8 -c 3
  unreadable verify "$dev" -s 12 -c 0
done
nvme smart-log "/dev/$CTRL" | grep -Eq "^media_errors[[:space:]]*: 0$" || fail "media errors"

klog_check
# the marks of the file outlive the target, the marks of the memory do not
target_kill
wait_for 30 ctrl_lost
target_restart
wait_for 30 ctrl_live
nvme_says . verify "$one" -s 8 -c 7
unreadable verify "$two" -s 12 -c 0
unreadable read "$two" -s 15 -c 0 -z 512
put "$two" 4096 /tmp/a
content "$two" 8 /tmp/a
klog_mark

# Linux does not let user space enable format 2 (Host Behavior Support), which e2e tests
refused "Invalid Field|INVALID_FIELD" io-passthru "$one" --opcode=0x19 --namespace-id=1 \
  --cdw10=1000 --cdw12=0x200 -w --data-len=32 -i /tmp/zero

klog_check
host_disconnect
klog_check
