# Two hosts and one namespace: reservations by nvme-cli and through the block layer (pr_ops); the
# write of a preempted host fails; the target is killed and keeps persistent reservations.
# variants: rxe siw tcp
# soak: soft
# covers: nvme nvme/target nvme/target/reservation internal/state
# kernel: nvme_core.multipath=N
. "$LAB_DIR/lib.sh"
[ "$TARGET" = ours ] || skip "the kernel's target keeps no reservations"
NAMESPACES=(1:ram:64MiB)
lab_up; target_start
# Without multipathing each host has a device of its own: the paths of two hosts are not one disk's.
host_connect --reconnect-delay=1; A=$CTRL
HOSTID=${HOSTID%a}b; HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:$HOSTID
host_connect_again reconnect_delay=1; B=$(controllers | grep -v "^$A\$")
for c in $A $B; do wait_for 10 test -b "/dev/${c}n1"; done

resv() { # COMMAND CTRL [OPTION...]
  local command=$1 ctrl=$2; shift 2
  nvme "resv-$command" "/dev/${ctrl}n1" --namespace-id=1 "$@" 2>&1
}
works() { local out; say "resv $*"; out=$(resv "$@") || fail "resv $*: $out"; }
conflicts() {
  local out; say "resv $*, a conflict"
  if out=$(resv "$@"); then fail "resv $* succeeded"; fi
  grep -qiE 'conflict|0x4?083' <<<"$out" || fail "resv $*: $out"
}
report() { resv report "$A" --eds --numd=63 --output-format=json; }
reported() { # JQ-EXPRESSION
  report >/run/report || fail "resv-report: $(cat /run/report)"
  [ "$(jq "$1" </run/report)" = true ] || fail "not $1: $(cat /run/report)"
}
write() {
  nvme write "/dev/${1}n1" --namespace-id=1 --start-block=0 --block-count=7 --data-size=4096 \
    --data=/dev/zero 2>&1
}
writes() { local s; s=$(write "$1"); [[ $s == *uccess* ]] || fail "write of $1: $s"; }
refused() {
  local s; s=$(write "$1" || true)
  grep -qiE 'conflict|0x4?083' <<<"$s" || fail "write of $1: $s"
}
reads() {
  local s; s=$(read_block "$1"); [[ $s == *uccess* ]] || fail "read of $1: $s"
}
no_reads() {
  local s; s=$(read_block "$1" || true)
  grep -qiE 'conflict|0x4?083' <<<"$s" || fail "read of $1: $s"
}
read_block() {
  nvme read "/dev/${1}n1" --namespace-id=1 --start-block=0 --block-count=7 --data-size=4096 \
    --data=/run/block 2>&1
}
notified() { # CTRL TYPE: the oldest notification; 0: there is none
  nvme resv-notif-log "/dev/$1" >/run/log || fail "resv-notif-log: $(cat /run/log)"
  grep -qE "Page Type[[:space:]]*: $2" /run/log || fail "not type $2: $(cat /run/log)"
}
live() { [ "$(cat "/sys/class/nvme/$1/state")" = live ]; }

nvme id-ns "/dev/${A}n1" | tee /run/id
grep -q '^rescap *: 0xff' /run/id || fail "RESCAP"
works register "$A" --nrkey=0xa --rrega=0 --cptpl=3
works register "$B" --nrkey=0xb --rrega=0
conflicts register "$B" --nrkey=0xc --rrega=0
conflicts acquire "$B" --crkey=0xc --rtype=1 --racqa=0
works acquire "$B" --crkey=0xb --rtype=1 --racqa=0
conflicts acquire "$A" --crkey=0xa --rtype=1 --racqa=0
report; reported '.rtype == 1 and .regctl == 2 and .ptpls == 1'
refused "$A"; writes "$B"
resv report "$A" >/run/said && fail "a report without EDS succeeded"
grep -qiE 'inconsistent|0x4?018' /run/said || fail "report without EDS: $(cat /run/said)"
works acquire "$A" --crkey=0xa --prkey=0xb --rtype=1 --racqa=1
reported '.rtype == 1 and .regctl == 1'
writes "$A"; refused "$B"
notified "$B" 1; notified "$B" 0
works acquire "$A" --crkey=0xa --prkey=0xb --rtype=1 --racqa=1 # a preempt may be repeated
works register "$B" --nrkey=0xb --rrega=0
works register "$B" --crkey=0xb --nrkey=0xc --rrega=2
conflicts register "$B" --crkey=0xb --nrkey=0xd --rrega=2
works register "$B" --nrkey=0xb --rrega=2 --iekey
works acquire "$A" --crkey=0xa --prkey=0xb --rtype=1 --racqa=2
notified "$B" 1
reported '.rtype == 1 and .regctl == 1'

say "the mask of notifications, and the types of reservations"
works register "$B" --nrkey=0xb --rrega=0
mask() {
  nvme set-feature "/dev/$B" --feature-id=0x82 --namespace-id=1 --value="$1" || fail "mask $1"
}
mask 4 # Reservation Released
nvme get-feature "/dev/$B" --feature-id=0x82 --namespace-id=1 | tee /run/said
grep -qi 'value: *0x0*4' /run/said || fail "feature 82h"
nvme get-feature "/dev/$A" --feature-id=0x83 --namespace-id=1 | tee /run/said
grep -qi 'value: *0x0*1' /run/said || fail "feature 83h"
works release "$A" --crkey=0xa --rtype=1 --rrela=0
works acquire "$A" --crkey=0xa --rtype=3 --racqa=0
works release "$A" --crkey=0xa --rtype=3 --rrela=0
notified "$B" 0
mask 0
for t in $(sample 2 1 2 3 4 5 6); do
  works register "$B" --crkey=0xb --rrega=1 --iekey
  works acquire "$A" --crkey=0xa --rtype="$t" --racqa=0
  reported ".rtype == $t and .regctl == 1"
  refused "$B"
  if [ $((t % 2)) = 0 ]; then no_reads "$B"; else reads "$B"; fi
  works register "$B" --nrkey=0xb --rrega=0
  case $t in
    1) reads "$B"; refused "$B" ;;
    2) no_reads "$B"; refused "$B" ;;
    *) reads "$B"; writes "$B" ;;
  esac
  works release "$A" --crkey=0xa --rtype="$t" --rrela=0
  writes "$B"
  if [ "$t" -gt 2 ]; then notified "$B" 2; else notified "$B" 0; fi
done
works release "$A" --crkey=0xa --rrela=1
notified "$B" 3
works register "$A" --nrkey=0xa --rrega=0 --cptpl=3
works acquire "$A" --crkey=0xa --rtype=1 --racqa=0

klog_check 'eservation conflict|Reservation Conflict|[Ss]hared namespace'

say "the target is killed and started again"
target_kill
wait_for 30 eval "! live $A && ! live $B"
target_restart
for c in $A $B; do wait_for 30 live "$c"; done
reported '.rtype == 1 and .regctl == 1 and .ptpls == 1'
writes "$A"; refused "$B"
conflicts release "$B" --crkey=0xb --rtype=1 --rrela=0
works release "$A" --crkey=0xa --rtype=1 --rrela=0
writes "$B"
works release "$A" --crkey=0xa --rrela=1
reported '.rtype == 0 and .regctl == 0'

# The ioctls of linux/pr.h: register, reserve, release, preempt, preempt and abort, clear.
pr() { # CTRL NUMBER TEMPLATE VALUE...
  local dev=/dev/${1}n1 nr=$2; shift 2
  say "pr ioctl $nr on $dev: $*"
  perl -e 'my ($dev, $nr, $template, @v) = @ARGV; my $b = pack($template, @v);
    open(my $f, "+<", $dev) or die "$dev: $!\n";
    my $r = ioctl($f, 1 << 30 | length($b) << 16 | ord("p") << 8 | $nr, $b);
    defined($r) or die "$!\n"; exit($r > 0)' "$dev" "$nr" "$@"
}
# pr_read CTRL "KEY...; KEY TYPE": the registrants, and the holder of the reservation, from Linux 7
# on.
pr_read() {
  local out
  case $(uname -r) in [1-6].*) return ;; esac
  out=$(perl -e 'open(my $f, "+<", $ARGV[0]) or die "$!\n";
    my $keys = "\0" x 64; my $list = pack("LLP", 0, 8, $keys); my $held = "\0" x 16;
    ioctl($f, 0xc01070ce, $list) or die "IOC_PR_READ_KEYS: $!\n";
    ioctl($f, 0x801070cf, $held) or die "IOC_PR_READ_RESERVATION: $!\n";
    my $n = (unpack("LL", $list))[1]; my @held = unpack("QLL", $held);
    print join(" ", sort(unpack("Q$n", $keys))), "; $held[0] $held[2]"' "/dev/${1}n1")
  [ "$out" = "$2" ] || fail "pr_read $1: $out, not $2"
}
klog_mark
pr "$A" 200 QQLL 0 10 0 0
pr "$B" 200 QQLL 0 11 0 0
pr_read "$A" "10 11; 0 0"
pr "$B" 201 QLL 11 1 0
pr_read "$A" "10 11; 11 1"
! pr "$A" 201 QLL 10 1 0 || fail "two hosts hold the reservation"
pr "$A" 204 QQLL 10 11 1 0
pr_read "$B" "10; 10 1"
reported '.rtype == 1 and .regctl == 1 and .ptpls == 1'
writes "$A"; refused "$B"
if dd if=/dev/zero of="/dev/${B}n1" bs=4096 count=1 oflag=direct 2>/run/said; then
  fail "the write of a preempted host succeeded"
fi
cat /run/said
pr "$A" 202 QLL 10 1 0
pr "$A" 205 QLL 10 0 0
pr_read "$B" "; 0 0"
writes "$B"
klog_check 'eservation conflict|Reservation Conflict'
for c in $A $B; do nvme disconnect -d "$c" >/dev/null; done
wait_for 10 no_controllers
target_stop
