# A host with an NQN that is not allowed is refused with Connect Invalid Host, and its discovery log
# does not list the subsystem.
# variants: rxe siw tcp soft softiw
# covers: nvme/target nvme/target/subsystems config config/lang
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
ALLOWED=nqn.2014-08.org.nvmexpress:uuid:12345678-0000-4000-8000-00000000000b
lab_up; target_start
if nvme_connect 2>/tmp/err; then fail "the host was accepted"; fi
cat /tmp/err
dmesg | tail -n 3
klog_has "Connect for subsystem $NQN is not allowed, hostnqn: $HOSTNQN" ||
  fail "the host was refused with another status than Connect Invalid Host"
no_controllers || fail "a controller is left"
discover >/tmp/discovery
if grep -q "$NQN" /tmp/discovery; then
  fail "the discovery log lists the subsystem for a host that may not connect"
fi
say "the allowed host"
HOSTID=12345678-0000-4000-8000-00000000000b HOSTNQN=$ALLOWED
discover | grep -q "$NQN" ||
  fail "the discovery log does not list the subsystem for the host that may connect"
host_connect
host_disconnect
