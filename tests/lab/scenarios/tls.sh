# Linux uses TLS 1.3: tlshd of Debian 13 does handshakes, with keys made by nvme-cli and by the
# target, every identity and hash. Keys change under I/O. A wrong key is refused, and so is a host
# without TLS where it is required; where it is allowed both are served. Discovery, and with
# DH-HMAC-CHAP.
# variants: tcp
# covers: fabric/tcp/tls fabric/tcp/openssl fabric/tcp nvme/auth
# cpus: 2
# limit: 400
# debian: ktls-utils nvme-cli keyutils
. "$LAB_DIR/lib.sh"
NAMESPACES=(1:ram:64MiB)
ALLOWED=$HOSTNQN
KEYS='' TLS=required
copy_function target_config plain_config
target_config() {
  plain_config | sed "s/transport: tcp/&, tls: $TLS/"
  echo "hosts: [{nqn: \"$HOSTNQN\"$KEYS}]"
}
set_keys() { # KEYS
  local before; before=$(log_count "the configuration was applied")
  KEYS=$1; target_config >/run/target.yaml
  kill -HUP "$TPID"
  wait_for 10 log_has "the configuration was applied" $((before + 1))
}
for d in proc sys dev; do mount --rbind /$d "$DEBIAN_ROOT/$d"; done
for d in run tmp; do mount -t tmpfs tmp "$DEBIAN_ROOT/$d"; done
debian() { chroot "$DEBIAN_ROOT" "$@"; }
nvme() { debian nvme "$@"; }
printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >"$DEBIAN_ROOT/run/tlshd.conf"
copy_function fail plain_fail
fail() { tail -n 20 /run/tlshd.log; plain_fail "$@"; }

forget() { debian keyctl clear "$(awk '$8 == "keyring" && $9 == ".nvme:" {print "0x" $1}' /proc/keys)"; }
use() { # KEY IDENTITY [SUBSYSTEM]: the host has this key and no other one
  forget
  nvme check-tls-key --keydata="$1" --hostnqn=$HOSTNQN --subsysnqn="${3:-$NQN}" --identity="$2" \
    --insert >/run/inserted
}
refused() { # WHAT MESSAGE OPTIONS...: MESSAGE, a pattern, is in the log of the host's kernel
  local what=$1 message=$2; shift 2
  klog_mark
  if nvme_connect "$@" 2>/tmp/err; then fail "a host $what was accepted"; fi
  cat /tmp/err
  klog_has "$message" || { dmesg | tail; fail "the host $what does not say: $message"; }
  wait_for 10 no_controllers
}
HANDSHAKE="queue 0: TLS handshake complete, error" # EACCES

# hears: tlshd has joined the multicast group of the handshakes.
hears() { awk '$2 == 16 && $4 != "00000000" {found = 1} END {exit !found}' /proc/net/netlink; }
start_tlshd() {
  debian tlshd --stderr --config /run/tlshd.conf >/run/tlshd.log 2>&1 &
  wait_for 10 hears
}

# The same against nvmet, as far as it goes. Host and target are one kernel with one keyring and one
# tlshd: both always have the same keys, so none of them is wrong, and none is replaced.
control() {
  local key identity chap cfg=/sys/kernel/config/nvmet
  copy_function nvmet_port plain_port
  nvmet_port() {
    plain_port "$@"
    echo tls1.3 >$cfg/ports/1/addr_tsas
    [ $TLS = required ] || echo "not required" >$cfg/ports/1/addr_treq
  }
  chap=$(nvme gen-dhchap-key --hmac=1 --nqn=$HOSTNQN)
  key=$(nvme gen-tls-key --hmac=1)
  lab_up; target_start
  use "$key" 1
  refused "without tlshd" "failed to start TLS: -3" --tls
  start_tlshd
  for identity in 0 1; do
    use "$key" $identity
    host_connect --nr-io-queues=2 --tls; fio_verify verify --bs=64k --size=1M; host_disconnect
  done
  say "refused"
  refused "without TLS" "queue 0: failed to receive icresp"
  forget
  refused "without a key" "no valid PSK found" --tls
  say "discovery"
  use "$key" 1 nqn.2014-08.org.nvmexpress.discovery
  discover --tls >/run/log || fail "nvme discover --tls"
  grep -q "treq: *required" /run/log && grep -q "sectype: *tls13" /run/log || {
    cat /run/log; fail "the discovery log does not say that TLS is required"; }
  say "allowed, and secure channel concatenation"
  TLS=allowed
  nvmet_kill; echo "not required" >$cfg/ports/1/addr_treq; nvmet_restart
  host_connect; fio_verify verify --bs=64k --size=1M; host_disconnect
  use "$key" 1
  host_connect --tls; host_disconnect
  echo "$chap" >"$cfg/hosts/$HOSTNQN/dhchap_key"
  echo ffdhe2048 >"$cfg/hosts/$HOSTNQN/dhchap_dhgroup" # without a group no PSK is generated
  forget
  host_connect --nr-io-queues=2 --concat --dhchap-secret="$chap"
  fio_verify verify --bs=64k --size=1M
  nvme reset "/dev/$CTRL"; wait_for 10 ctrl_live
  host_disconnect
  refused "with a wrong key" "qid 0: authentication failed, error" --concat \
    --dhchap-secret="$(nvme gen-dhchap-key --hmac=1 --nqn=$HOSTNQN)"
  target_stop
}
if [ "$TARGET" = nvmet ]; then control; exit; fi

sha256=$(nvme gen-tls-key --hmac=1) sha384=$("$TARGET_BIN" key gen --tls --hmac 2)
none=$("$TARGET_BIN" key gen --tls --hmac 0) other=$("$TARGET_BIN" key gen --tls)
for k in "$sha256" "$sha384" "$none"; do "$TARGET_BIN" key check <<<"$k"; done
for k in "$sha384" "$other"; do # nvme-cli makes one of these; that of Debian 13 has "compat" only
  use "$k" 1
  "$TARGET_BIN" key psk-identity -n $HOSTNQN -c $NQN <<<"$k" | sed -n 's/.*: NVMe1/NVMe1/p' \
    >/run/identities
  grep -qF -f /run/identities /proc/keys || fail "nvme-cli makes other identities than the target"
done
KEYS=", tls_key: \"$sha256\""
lab_up; target_start
use "$sha256" 1
refused "without tlshd" "failed to start TLS: -3" --tls
start_tlshd
combinations=("$sha256 0" "$sha256 1" "$none 0" "$none 1")
# With a GnuTLS that does not have this, tlshd proves keys of SHA-384 with SHA-256, which RFC 8446
# does not allow (section 4.2.11).
if grep -q gnutls_psk_allocate_client_credentials2 "$DEBIAN_ROOT/usr/sbin/tlshd"; then
  combinations+=("$sha384 0" "$sha384 1")
else
  say "not with SHA-384: the GnuTLS of tlshd is too old"
fi
for combination in "${combinations[@]}"; do
  read -r key identity <<<"$combination"
  set_keys ", tls_key: \"$key\""
  use "$key" "$identity"
  cipher=TLS_AES_128_GCM_SHA256; [ "$key" != "$sha384" ] || cipher=TLS_AES_256_GCM_SHA384
  klog_mark
  before=$(log_count "cipher=$cipher psk=configured identity=$identity")
  host_connect --nr-io-queues=2 --tls
  logged "cipher=$cipher psk=configured identity=$identity" $((before + 1))
  fio_verify verify --bs=64k --size=1M
  host_disconnect
  klog_check
done

say "refused"
use "$other" 1
refused "with a wrong key" "$HANDSHAKE" --tls
refused "without TLS" "queue 0: failed to receive icresp"
logged "TLS handshake failed"
forget
refused "without a key" "no valid PSK found" --tls

say "discovery"
set_keys ", tls_key: \"$sha256\""
use "$sha256" 1 nqn.2014-08.org.nvmexpress.discovery
discover --tls >/run/log || fail "nvme discover --tls"
grep -q "treq: *required" /run/log && grep -q "sectype: *tls13" /run/log || {
  cat /run/log; fail "the discovery log does not say that TLS is required"; }

say "keys change under I/O"
use "$sha256" 1
host_connect --nr-io-queues=2 --tls
load live --bs=4k --size=2M --time_based --runtime=3
wait_for 20 load_moved 100
set_keys ", tls_key: \"$other\", tls_old_key: \"$sha256\""
nvme reset "/dev/$CTRL"; wait_for 10 ctrl_live
wait_for 20 load_moved 100
set_keys ", tls_key: \"$other\""
wait_for 20 load_moved 100
load_ends
host_disconnect
refused "with the key before" "$HANDSHAKE" --tls
use "$other" 1
host_connect --tls; host_disconnect

say "allowed, with and without, and with DH-HMAC-CHAP"
TLS=allowed
set_keys ", tls_key: \"$other\""
host_connect --tls; host_disconnect
host_connect; fio_verify verify --bs=64k --size=1M; host_disconnect
chap=$("$TARGET_BIN" key gen)
TLS=required
set_keys ", tls_key: \"$other\", dhchap_key: \"$chap\""
refused "without DH-HMAC-CHAP" "qid 0: no key" --tls
host_connect --tls --dhchap-secret="$chap"; fio_verify verify --bs=64k --size=1M
host_disconnect

say "secure channel concatenation"
TLS=allowed
set_keys ", dhchap_key: \"$chap\""
forget
klog_mark
host_connect --nr-io-queues=2 --concat --dhchap-secret="$chap"
psk=generated; logged "psk=$psk"
fio_verify verify --bs=64k --size=1M
load live --bs=4k --size=2M --time_based --runtime=3
wait_for 20 load_moved 100
nvme reset "/dev/$CTRL"; wait_for 10 ctrl_live # another PSK
wait_for 20 load_moved 100
load_ends
host_disconnect
klog_check 'resetting controller|no usable path'
refused "with a wrong key" "qid 0: authentication failed, error" --concat \
  --dhchap-secret="$("$TARGET_BIN" key gen)"
TLS=off; set_keys ", dhchap_key: \"$chap\""
refused "where TLS is off" "qid 0: authentication failed, error" --concat --dhchap-secret="$chap"
for k in "$sha256" "$sha384" "$none" "$other" "$chap"; do
  if grep -qF -e "${k:20:30}" /run/target.log; then fail "a key is in the log"; fi
done
target_stop
