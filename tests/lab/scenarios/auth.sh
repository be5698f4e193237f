# Linux authenticates with DH-HMAC-CHAP: every hash with every group, in one direction and in both;
# keys made by nvme-cli and by the target; again on a live controller under I/O; keys that change
# meanwhile, and at an interval. A host with a wrong key, or without one, is refused, and so is a
# wrong controller. With secure_only hosts without a key find nothing, and discovery wants the key as
# well. The first half also runs against nvmet.
# variants: rxe siw tcp
# soak: soft
# smoke: rxe siw tcp
# covers: nvme/auth nvme/target nvme/target/authn internal/app config config/lang internal/secret
# cpus: 2
# limit: 900
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
ALLOWED=$HOSTNQN
KEYS=''                # the rest of the host's entry in the configuration
copy_function target_config plain_config
SECURE=false
target_config() {
  plain_config; echo "hosts: [{nqn: \"$HOSTNQN\"$KEYS}]"; echo "secure_only: $SECURE"
}
set_keys() { # KEYS, as in the configuration
  local before; before=$(log_count "the configuration was applied")
  KEYS=$1; target_config >/run/target.yaml
  kill -HUP "$TPID"
  wait_for 10 log_has "the configuration was applied" $((before + 1))
}
# authentications: how many the host has made since klog_mark. The target's log does not say, since
# it limits the lines that a host can cause.
authentications() {
  dmesg | sed "0,/$KLOG_MARK/d" | grep -c "qid 0: authenticated with hash" || true
}
authenticated() { [ "$(authentications)" -ge "$1" ]; } # N times
again() { # KEY: the host authenticates again, while it reads and writes
  local before; before=$(authentications)
  wait_for 20 load_moved 100
  echo "$1" >"/sys/class/nvme/$CTRL/dhchap_secret"
  wait_for 10 authenticated $((before + 1))
}
use() { # HASH GROUP [both]: the target accepts these, and authenticates itself with both
  local cfg=/sys/kernel/config/nvmet/hosts/$HOSTNQN
  if [ "$TARGET" = ours ]; then
    set_keys ", dhchap_key: \"$host\", dhchap_hash: [$1], dhchap_dhgroup: [\"$2\"]${3:+,
      dhchap_ctrl_key: \"$ctrl\"}"
    return
  fi
  echo "$host" >"$cfg/dhchap_key"
  [ -z "${3:-}" ] || echo "$ctrl" >"$cfg/dhchap_ctrl_key" # this key cannot be removed
  echo "hmac($1)" >"$cfg/dhchap_hash"; echo "$2" >"$cfg/dhchap_dhgroup"
}
refused() { # WHAT MESSAGE OPTIONS...: MESSAGE, a pattern, is in the log of the host's kernel
  local what=$1 message=$2; shift 2
  klog_mark
  if nvme_connect "$@" 2>/tmp/err; then fail "a host $what was accepted"; fi
  cat /tmp/err
  klog_has "$message" || { dmesg | tail; fail "the host $what does not say: $message"; }
  wait_for 10 no_controllers
}

host=$(nvme gen-dhchap-key --key-length=48 --hmac=2 --nqn=$HOSTNQN)
if [ "$TARGET" = ours ]; then
  ctrl=$("$TARGET_BIN" key gen -m 3); other=$("$TARGET_BIN" key gen)
  "$TARGET_BIN" key check <<<"$host"
else
  ctrl=$(nvme gen-dhchap-key --key-length=64 --hmac=3 --nqn=$NQN)
  other=$(nvme gen-dhchap-key --nqn=$HOSTNQN)
fi
nvme check-dhchap-key --key="$ctrl"; nvme check-dhchap-key --key="$other"
KEYS=", dhchap_key: \"$host\""
lab_up; target_start
matrix=()
for h in sha256 sha384 sha512; do
  for g in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
    for both in '' both; do matrix+=("$h:$g:$both"); done
  done
done
mapfile -t matrix < <(sample $(sized 1 3 36) "${matrix[@]}")
for combination in "${matrix[@]}"; do
  IFS=: read -r hash group both <<<"$combination"
  use "$hash" "$group" "$both"
  klog_mark
  host_connect --nr-io-queues=2 --dhchap-secret="$host" ${both:+--dhchap-ctrl-secret="$ctrl"}
  klog_has "qid 0: authenticated with hash hmac\($hash\) dhgroup $group" || fail "not $combination"
  [ -z "$both" ] || klog_has "qid 0: controller authenticated" ||
    fail "the controller has not authenticated: $combination"
  dd if="$DEV" of=/dev/null bs=1M count=1 iflag=direct status=none
  host_disconnect
  klog_check
done

say "refused"
use sha256 ffdhe2048 both
rejected="qid 0: authentication failed, error -129"
# nvmet lets the host wait for a minute for the reason.
[ "$TARGET" = ours ] || rejected="qid 0: authentication failed, error"
refused "with a wrong key" "$rejected" --dhchap-secret="$other"
refused "without a key" "qid 0: no key"
refused "that expects another controller" "qid 0: controller authentication failed" \
  --dhchap-secret="$host" --dhchap-ctrl-secret="$other"
if [ "$TARGET" != ours ]; then target_stop; exit; fi
logged "authentication failed"

say "again, under I/O, while keys change"
set_keys ", dhchap_key: \"$host\", dhchap_ctrl_key: \"$ctrl\""
klog_mark
host_connect --nr-io-queues=2 --dhchap-secret="$host" --dhchap-ctrl-secret="$ctrl"
load live --bs=4k --size=2M --time_based --runtime=3
again "$host"; again "$host"
set_keys ", dhchap_key: \"$other\", dhchap_old_key: \"$host\", dhchap_ctrl_key: \"$ctrl\""
again "$host"; again "$other"
wait_for 20 load_moved 100
load_ends
ctrl_live || fail "the controller did not stay"
klog_check

if [ -z "$SMOKE" ]; then
say "again, at an interval, under I/O"
klog_mark
set_keys ", dhchap_key: \"$other\", dhchap_ctrl_key: \"$ctrl\", reauthenticate: 10s"
load live --bs=4k --size=2M --time_based --runtime=45
for n in 1 2 3; do wait_for 30 authenticated $n; done
load_ends
ctrl_live || fail "the controller did not stay"
# as_asked: the host has authenticated as often as it was asked. It may be at it.
as_asked() { [ "$(log_count "has to authenticate again")" = "$(authentications)" ]; }
wait_for 10 as_asked
klog_check
say "and while it only reads ahead"
klog_mark
dd if=/dev/urandom of=/tmp/data bs=1M count=4 status=none
dd if=/tmp/data of="$DEV" bs=1M oflag=direct status=none
reads() { # until the host has authenticated twice
  local end=$((SECONDS + 90))
  while ! authenticated 2; do
    [ $SECONDS -lt $end ] || return 1
    blockdev --flushbufs "$DEV"
    head -c 4M "$DEV" | cmp - /tmp/data || return 1
  done
}
reads || fail "the host does not authenticate while it reads ahead, or reads something else"
ctrl_live || fail "the controller did not stay"
log_has "did not authenticate again" && fail "the host did not authenticate again"
# failed reads ahead are not repeated
klog_check "I/O error, dev nvme.* op 0x0:\(READ\)|Read\(0x2\).* sc 0x91\)"
fi

say "secure only"
by_kernel() { # NQN OPTIONS: connects without nvme-cli, and prints the controller, as in nvme1
  local options=nqn=$1,transport=$TRTYPE,traddr=$ADDR,trsvcid=$PORT,$2 fabrics
  exec {fabrics}<>/dev/nvme-fabrics
  if { echo -n "$options" >&"$fabrics"; } 2>/dev/null; then
    sed 's/.*instance=\([0-9]*\).*/nvme\1/' <&"$fabrics"
  fi
  exec {fabrics}>&-
}
discovery=nqn.2014-08.org.nvmexpress.discovery
stranger=hostnqn=nqn.2026-11.io.nvmf-target:other,hostid=11111111-2222-3333-4444-555555555555
discover | grep -q "$NQN" || fail "discovery wants a key"
SECURE=true
set_keys ", dhchap_key: \"$other\", dhchap_ctrl_key: \"$ctrl\""
klog_mark
if discover >/tmp/discovery 2>&1; then fail "discovery needs no key"; fi
klog_has "qid 0: no key" || fail "the host is not asked to authenticate"
# nvme-cli 2 gives its key to no discovery controller, so the kernel gets it without.
dc=$(by_kernel $discovery \
  "hostnqn=$HOSTNQN,hostid=$HOSTID,keep_alive_tmo=30,dhchap_secret=$other")
klog_has "$dc: qid 0: authenticated" || fail "the host has not authenticated at discovery"
discover --device="$dc" >/tmp/discovery
grep -q "$NQN" /tmp/discovery || fail "a host with a key is not told of the subsystem"
nvme disconnect -d "$dc"
for what in "$NQN" "$NQN-unknown" $discovery; do
  klog_mark
  [ -z "$(by_kernel "$what" $stranger)" ] || fail "$what is revealed"
  klog_has "Connect Invalid Data Parameter, subsysnqn" || fail "$what is there, the host can tell"
done
ctrl_live || fail "a host with a key was disconnected"
klog_mark

nvme reset "/dev/$CTRL"; wait_for 10 ctrl_live
klog_check "resetting controller"
host_disconnect
if grep -qF -e "${host:12:30}" -e "${ctrl:12:30}" -e "${other:12:30}" /run/target.log; then
  fail "a key is in the log"
fi
target_stop
