# The output of nvme-cli about a connected controller. The kernel does not warn about anything in
# it.
# variants: rxe siw tcp
# soak: soft
# covers: nvme nvme/target nvme/target/controllers nvme/target/admin
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB 2:ram:64MiB::4096 3:null:1TiB) # an extended self-test takes hours
lab_up; target_start; host_connect
show() { say "nvme $*"; nvme "$@" >/tmp/show || fail "nvme $*: exit code $?"; cat /tmp/show; }
want() { grep -Eq "$1" /tmp/show || fail "no line like: $1"; }

show list; want "^$DEV "
show list-subsys; want "$CTRL $TRTYPE .*live"
show id-ctrl "/dev/$CTRL"; want "^subnqn +: $NQN"; want "^mn +: [^ ]"; want "^sn +: [^ ]"
show id-ns "$DEV"; want "^nsze +: 0x20000$"; want "lbads:9 .*\(in use\)"
show id-ns "$(namespace_device 2)"; want "^nsze +: 0x4000$"; want "lbads:12 .*\(in use\)"
show ns-descs "$DEV"; want "^(nguid|uuid|eui64)"
show list-ns "/dev/$CTRL"; want ":0x1$"; want ":0x2$"
show smart-log "/dev/$CTRL"; want "^critical_warning"
show error-log "/dev/$CTRL" -e 1
show fw-log "/dev/$CTRL"
show effects-log "/dev/$CTRL"; ! grep -i "invalid" /tmp/show || fail "effects-log"
show get-property "/dev/$CTRL" --offset=0; want "^property: [0-9a-f]"
show get-property "/dev/$CTRL" --offset=8
show list-ns "/dev/$CTRL" -a; want ":0x1$"; want ":0x2$"
show list-ctrl "/dev/$CTRL"; want "0x1$"
for feature in 1 2 4 "5 -n 1" 7 8 9 0xb 0xf; do show get-feature "/dev/$CTRL" -f $feature; done
show get-feature "/dev/$CTRL" -f 0xe -H; want "using a Set Features command"
show get-feature "/dev/$CTRL" -f 0x16 -l 512
show set-feature "/dev/$CTRL" -f 4 -v $((16#f0000 + 350))
show get-feature "/dev/$CTRL" -f 4; want "0x0*15e$"
! nvme set-feature "/dev/$CTRL" -f 1 -n 1 -v 0 &>/tmp/show || fail "set for a namespace"
cat /tmp/show; want "FEATURE_NOT_PER_NS|[Nn]ot.*[Nn]amespace"
show set-feature "/dev/$CTRL" -f 0x84 -n 1 -v 1
show get-feature "/dev/$CTRL" -f 0x84 -n 1; want "0x0*1$"
show id-ns "$DEV"; want "^nsattr[[:space:]]*: (0x)?1$"
wait_for 10 grep -q 1 "/sys/block/${DEV#/dev/}/ro" # the host sees that it is read-only
show set-feature "/dev/$CTRL" -f 0x84 -n 1 -v 0
wait_for 10 grep -q 0 "/sys/block/${DEV#/dev/}/ro" # the host may write again
# I/O command sets: Linux enables all of them
show get-property "/dev/$CTRL" --offset=0x14; want "460061$"
show id-iocs "/dev/$CTRL"; want "1$"
show cmdset-ind-id-ns "$DEV" -n 1; want "nmic"
show get-feature "/dev/$CTRL" -f 0x19

show supported-log-pages "/dev/$CTRL"; want "0x6|Self-test"
show device-self-test "/dev/$CTRL" -n 1 -s 1
wait_for 30 sh -c "nvme self-test-log /dev/$CTRL | grep -q 'Current operation.*: 0$'"
show self-test-log "/dev/$CTRL" -e 1; want "Operation Result +: 0"; want "Self Test Code +: 1"
show device-self-test "/dev/$CTRL" -n 0xffffffff -s 2
! nvme device-self-test "/dev/$CTRL" -n 1 -s 1 &>/tmp/show || fail "a second self-test"
cat /tmp/show; want "[Ss]elf.?[Tt]est"
show device-self-test "/dev/$CTRL" -s 0xf
show self-test-log "/dev/$CTRL" -e 1; want "Operation Result +: 0x1|Operation Result +: 1"

show telemetry-log "/dev/$CTRL" -o /tmp/telemetry
tail -c +513 /tmp/telemetry | tr -d '\n' >/tmp/show; cat /tmp/show; echo
want '^\{"version".*"connections":.*"namespaces":.*"events":'; want "$NQN"
klog_check
host_disconnect
klog_check
