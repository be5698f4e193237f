# Sourced by the scenarios that change the configuration of a running target. It changes at random:
# listeners, the subsystems live-1 and live-2, the hosts that may connect to them, and their
# namespaces. Nothing changes subsystem $NQN. The Linux host connects to everything that it may.
: "${SEED:=${SAMPLE:-$(date +%s)}}"
RANDOM=$SEED
HOSTID2=12345678-0000-4000-8000-00000000000b
HOSTNQN2=nqn.2014-08.org.nvmexpress:uuid:$HOSTID2
LIVE=nqn.2026-11.io.nvmf-target:live-
declare -A ALLOWS=() # by subsystem, 1 or 2: the hosts that may connect, or any
declare -A SPACES=() # by subsystem:NSID: "MIB PATH READ_ONLY", the path - if it has none
declare -A CONNECTED=() DEVICE=() # by subsystem; by subsystem:NSID
declare -A PORT_ID=()   # by "TRANSPORT PORT", of all that the host has ever seen
GENERATION=0 SEEN_LOG='' FILES=0 SEEN='' VISIBLE_AT=0

copy_function target_config plain_config
target_config() {
  local sub nsid backend mib path read_only
  plain_config
  for sub in 1 2; do
    [ -n "${ALLOWS[$sub]:-}" ] || continue
    echo "  - nqn: $LIVE$sub"
    case ${ALLOWS[$sub]} in
      any) echo "    allow_any_host: true" ;;
      *) echo "    hosts: [${ALLOWS[$sub]// /, }]" ;;
    esac
    echo "    namespaces:"
    for nsid in 1 2 3 4; do
      read -r mib path read_only <<<"${SPACES[$sub:$nsid]:-}"
      [ -n "$mib" ] || continue
      case $nsid in 1 | 2) backend='file' ;; 3) backend='ram' ;; 4) backend='"null"' ;; esac
      [ "$path" != - ] || path=''
      echo "      - {nsid: $nsid, backend: $backend, size: ${mib}MiB${path:+, path: $path}," \
        "read_only: $read_only}"
    done
  done
}

# change: changes the configuration at random, until it differs from the one of the target.
change() {
  local n
  for ((n = RANDOM % 3; n >= 0; n--)); do change_something; done
  while target_config | cmp -s - /run/target.yaml; do change_something; done
}
change_something() {
  local what=$((RANDOM % 9)) sub=$((1 + RANDOM % 2)) nsid=$((1 + RANDOM % 4)) mib path read_only
  local name=$sub:$nsid
  if [ $what = 0 ]; then change_listener; return; fi
  if [ -z "${ALLOWS[$sub]:-}" ]; then ALLOWS[$sub]=any; add_namespace $name; return; fi
  read -r mib path read_only <<<"${SPACES[$name]:-}"
  case $what:$mib in
    1:*) unset "ALLOWS[$sub]" "SPACES[$sub:1]" "SPACES[$sub:2]" "SPACES[$sub:3]" "SPACES[$sub:4]" ;;
    2:* | 3:*) change_hosts $sub ;;
    *:) add_namespace $name ;;
    4:*) [ "$(namespaces_of $sub)" = 1 ] || unset "SPACES[$name]" ;;
    5:* | 6:*)
      case $read_only in true) read_only=false ;; *) read_only=true ;; esac
      SPACES[$name]="$mib $path $read_only" ;;
    7:*) # it grows
      if [ "$path" != - ]; then
        truncate -s $((mib + 8))M "$path"; SPACES[$name]="$((mib + 8)) $path $read_only"
      fi ;;
    8:*) [ "$path" = - ] || add_namespace $name ;; # another file
  esac
}
change_listener() {
  local l=tcp/$ADDR/$((4421 + RANDOM % 2))
  [ $((RANDOM % 2)) = 0 ] || l=$TRTYPE/$ADDR/4423
  case " $TARGET_LISTENERS " in
    *" $l "*) TARGET_LISTENERS=$(tr ' ' '\n' <<<"$TARGET_LISTENERS" | grep -vx "$l" | xargs) ;;
    *) TARGET_LISTENERS="$TARGET_LISTENERS $l" ;;
  esac
}
change_hosts() { # SUBSYSTEM
  local choices=(any "$HOSTNQN" "$HOSTNQN2" "$HOSTNQN $HOSTNQN2")
  ALLOWS[$1]=${choices[RANDOM % 4]}
}
namespaces_of() { # SUBSYSTEM
  local nsid n=0
  for nsid in 1 2 3 4; do [ -z "${SPACES[$1:$nsid]:-}" ] || n=$((n + 1)); done
  echo $n
}
add_namespace() { # SUBSYSTEM:NSID; a file begins with its name
  local file
  case $1 in
    *:3) SPACES[$1]="16 - false" ;;
    *:4) SPACES[$1]="1048576 - false" ;;
    *)
      FILES=$((FILES + 1)) file=/run/disk/live.$FILES
      echo $file >$file; truncate -s $((16 + FILES % 3 * 4))M $file
      SPACES[$1]="$((16 + FILES % 3 * 4)) $file false" ;;
  esac
}

may_connect() { [[ ${ALLOWS[$1]:-} = any || ${ALLOWS[$1]:-} = *$HOSTNQN* ]]; } # SUBSYSTEM

# visible: the host sees the configuration: the namespaces of connected subsystems, no controller
# where it may not connect, and listeners and subsystems in the discovery log. VISIBLE_AT is the
# time in us before nvme-cli reads the log, which can take half a second.
visible() {
  look && [ "$SEEN" = "$(wanted)" ] || return 1
  VISIBLE_AT=${EPOCHREALTIME/./}
  read_log && [ "$SEEN_LOG" = "$(wanted_log)" ]
}
wanted_log() {
  local l transport port sub nqns=$NQN
  for sub in 1 2; do ! may_connect $sub || nqns+=" $LIVE$sub"; done
  for l in $TRTYPE/$ADDR/$PORT $TARGET_LISTENERS; do
    IFS=/ read -r transport _ port <<<"$l"
    printf "$transport $port %s\n" $nqns
  done | sort
}
wanted() {
  local sub nsid mib path read_only
  for sub in 1 2; do
    [ -n "${CONNECTED[$sub]:-}" ] && may_connect $sub || continue
    echo "connected to $sub"
    for nsid in 1 2 3 4; do
      read -r mib path read_only <<<"${SPACES[$sub:$nsid]:-}"
      [ -z "$mib" ] || echo "namespace $sub:$nsid of $((mib * 2048)) sectors, read-only $read_only"
    done
  done
}
# read_log: sets SEEN_LOG. Port IDs never change, and each change has a higher generation.
read_log() {
  local transport port nqn id log='' generation records
  discover -o json >/run/log.json 2>/run/log.err || return 1
  records=$(jq -r '.genctr, ([.records[] | select(.subtype == "nvme subsystem") |
    "\(.trtype) \(.trsvcid) \(.subnqn) \(.portid)"] | sort[])' /run/log.json)
  generation=${records%%$'\n'*}
  while read -r transport port nqn id; do
    [ "${PORT_ID[$transport $port]:=$id}" = "$id" ] ||
      fail "the ID of port $transport $port was ${PORT_ID[$transport $port]}, now it is $id"
    log+=${log:+$'\n'}"$transport $port $nqn"
  done <<<"${records#*$'\n'}"
  if [ "$generation" -lt "$GENERATION" ] ||
    { [ "$generation" = "$GENERATION" ] && [ "$log" != "$SEEN_LOG" ]; }; then
    fail "the discovery log has changed, its generation from $GENERATION to $generation"
  fi
  GENERATION=$generation SEEN_LOG=$log
}
# look: sets SEEN and DEVICE.
look() {
  local subsystem d nqn sub nsid state size read_only
  local -A found=()
  for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do
    { read -r nqn <"$subsystem/subsysnqn"; } 2>/dev/null || continue
    [[ $nqn = "$LIVE"? ]] || continue
    for d in "$subsystem"/nvme*; do
      if { read -r state <"$d/state"; } 2>/dev/null; then
        [ "$state" != live ] || found[${nqn#"$LIVE"}]=live
      elif { read -r nsid <"$d/nsid" && read -r size <"$d/size" &&
        read -r read_only <"$d/ro"; } 2>/dev/null; then
        [ "$read_only" = 1 ] && read_only=true || read_only=false
        found[${nqn#"$LIVE"}:$nsid]="of $size sectors, read-only $read_only"
        DEVICE[${nqn#"$LIVE"}:$nsid]=/dev/${d##*/}
      fi
    done
  done
  SEEN=$(for sub in 1 2; do
    [ -n "${found[$sub]:-}" ] || continue
    echo "connected to $sub"
    for nsid in 1 2 3 4; do
      [ -z "${found[$sub:$nsid]:-}" ] || echo "namespace $sub:$nsid ${found[$sub:$nsid]}"
    done
  done)
}

# await_visible SECONDS: like wait_for; shows the missing items.
await_visible() {
  local end=$((${EPOCHREALTIME/./} + 4000000 * $1))
  until visible; do
    if [ ${EPOCHREALTIME/./} -gt $end ]; then
      diff <(echo "$SEEN_LOG") <(wanted_log) || true
      diff <(echo "$SEEN") <(wanted) || true
      fail "after $((4 * $1)) s the host sees the first and not the second"
    fi
    sleep 0.02
  done
}
# settle: disconnects from subsystems to which the host may no longer connect, connects to the rest,
# and reads the files.
settle() {
  local sub
  for sub in "${!CONNECTED[@]}"; do
    may_connect $sub && continue
    # A host that is no longer allowed gives up by itself, as does one whose subsystem was removed,
    # unless the target was killed meanwhile. So nvme-cli may find nothing any more.
    [ -n "${ALLOWS[$sub]:-}" ] || nvme disconnect -n $LIVE$sub >/dev/null 2>&1 || true
    wait_for 20 gone $sub
    unset "CONNECTED[$sub]"
  done
  for sub in 1 2; do
    if may_connect $sub && [ -z "${CONNECTED[$sub]:-}" ]; then
      NQN=$LIVE$sub nvme_connect --reconnect-delay=1 >/dev/null ||
        fail "nvme connect: exit code $?"
      CONNECTED[$sub]=yes
      await_visible 10
    fi
  done
  check_files
}
# disconnect_all: from all subsystems, including removed ones.
disconnect_all() {
  wait_for 20 all_disconnected
}
all_disconnected() { # nvme-cli fails if one ends by itself meanwhile
  nvme disconnect-all >/dev/null 2>&1 || true
  [ -z "$(ls /sys/class/nvme)" ]
}
gone() { NQN=$LIVE$1 no_controllers; } # SUBSYSTEM
check_files() {
  local name path read
  for name in "${!SPACES[@]}"; do
    read -r _ path _ <<<"${SPACES[$name]}"
    [ "$path" != - ] && [ -n "${CONNECTED[${name%:*}]:-}" ] || continue
    read=$(dd if="${DEVICE[$name]}" bs=4k count=1 iflag=direct status=none | head -n 1)
    [ "$read" = "$path" ] || fail "namespace $name reads as $read instead of $path"
  done
}

# reload: has the target read its file again, and waits until it has done so.
reload() {
  local n
  n=$(times_ready)
  kill -HUP "$TPID"
  wait_for 20 ready_again $n
}
times_ready() { grep -c READY=1 /run/notify.log; }
ready_again() { [ "$(times_ready)" -gt $1 ]; }
