#!/usr/bin/env bash
# What every host of a job runs when it starts, and again when it is rebooted.
#
# It learns where the job's directory lies and which host this is, makes an environment with the
# wheel that was staged there, and hands over to the agent, `python -m bert_jax.launch.host`. It is
# the same text for every job: whatever a user has set comes as a file or as the value of a
# variable, and none of it is ever read as a command.
#
#   BERT_JAX_JOB       gs://BUCKET/jobs/NAME, or a directory. Unset: this is a Cloud TPU VM, and its
#                      metadata say this and the attempt: bert-jax-job, bert-jax-attempt.
#   BERT_JAX_ATTEMPT   a number.
#   BERT_JAX_WORKER    which host of the attempt, from 0. Unset: found as JAX finds it.
#   BERT_JAX_PYTHON    a Python that has bert-jax: in a container, on this machine. Unset: it is
#                      installed from the job's directory.
#   BERT_JAX_HOME      where this host keeps environment, caches and datasets.
#   BERT_JAX_ROOT      before paths of the system; the tests' own.
set -euo pipefail

readonly UV=0.13.9
readonly STORAGE=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
readonly METADATA=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
readonly FIRST_PAUSE=${BERT_JAX_PAUSE_SECONDS:-5}

readonly DISK=${BERT_JAX_ROOT:-}/dev/disk/by-id/google-persistent-disk-1
readonly DATA=${BERT_JAX_ROOT:-}/mnt/disks/data

fail() {
  printf 'bert-jax: %s\n' "$*" >&2
  exit 2
}

# number NAME VALUE: refuses what is no number. Bash's arithmetic would run commands in anything else.
number() {
  [[ $2 =~ ^[0-9]{1,9}$ ]] || fail "$1: found \"$2\", allowed: a number"
  printf '%d' "$((10#$2))"
}

# persistently COMMAND…: tries six times, over about five minutes.
persistently() {
  local pause=$FIRST_PAUSE tries=0
  until "$@"; do
    ((++tries < 6)) || return 1
    sleep "$pause"
    pause=$((pause * 2))
  done
}

# metadata PATH: what Cloud TPU says of this instance.
metadata() {
  persistently curl --silent --show-error --fail --max-time 30 --header 'Metadata-Flavor: Google' \
    "$METADATA/$1"
}

# count_hosts LIST: of a slice, separated by commas.
count_hosts() {
  local commas=${1//[^,]/}
  printf '%d' "$((${#commas} + 1))"
}

# Sets BERT_JAX_JOB, BERT_JAX_ATTEMPT and BERT_JAX_WORKER where they are not set.
who_am_i() {
  local slice id hosts
  on_tpu_vm=
  if [[ -z ${BERT_JAX_JOB:-} ]]; then
    on_tpu_vm=yes
    BERT_JAX_JOB=$(metadata attributes/bert-jax-job)
    BERT_JAX_ATTEMPT=$(metadata attributes/bert-jax-attempt)
    id=$(metadata attributes/agent-worker-number)
    hosts=$(metadata attributes/worker-network-endpoints)
    slice=$(metadata attributes/tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *'\{0,1\}\([0-9]*\)'\{0,1\} *$/\1/p")
  else
    id=${TPU_WORKER_ID:-${JOB_COMPLETION_INDEX:-0}}
    hosts=${TPU_WORKER_HOSTNAMES:-}
    slice=${MEGASCALE_SLICE_ID:-}
  fi
  if [[ -z ${BERT_JAX_WORKER:-} ]]; then
    id=$(number 'worker of the slice' "$id")
    slice=$(number 'slice' "${slice:-0}")
    BERT_JAX_WORKER=$((slice * $(count_hosts "$hosts") + id))
  fi
  BERT_JAX_WORKER=$(number BERT_JAX_WORKER "$BERT_JAX_WORKER")
  BERT_JAX_ATTEMPT=$(number BERT_JAX_ATTEMPT "${BERT_JAX_ATTEMPT:-}")
  [[ $BERT_JAX_JOB == gs://?*/?* || $BERT_JAX_JOB == /* ]] ||
    fail "BERT_JAX_JOB: found \"$BERT_JAX_JOB\", allowed: gs://BUCKET/… or a directory from / on"
  export BERT_JAX_JOB BERT_JAX_ATTEMPT BERT_JAX_WORKER
}

# Mounts the job's data disk (submit.data_disk), if there is one: other machines read it too.
mount_data() {
  if [[ -e $DISK ]] && ! mountpoint --quiet "$DATA"; then
    mkdir -p "$DATA"
    mount -o ro,noload "$DISK" "$DATA"
  fi
}

# encoded TEXT: as a part of a URL.
encoded() {
  local LC_ALL=C text=$1 at
  for ((at = 0; at < ${#text}; at++)); do
    case ${text:at:1} in
      [A-Za-z0-9._~-]) printf '%s' "${text:at:1}" ;;
      *) printf '%%%02X' "'${text:at:1}" ;;
    esac
  done
}

# storage OBJECT URL ARGUMENT…: asks Cloud Storage. The token goes in by standard input: arguments of
# a process can be seen by all.
storage() {
  local token url=$1
  shift
  token=$(metadata service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p')
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --silent --show-error --fail --max-time 600 --config - "$@" "$url"
}

# fetch NAME: a file of the job's directory to the working directory.
fetch() {
  local path=${BERT_JAX_JOB#gs://}
  if [[ $BERT_JAX_JOB == gs://* ]]; then
    persistently storage \
      "$STORAGE/storage/v1/b/${path%%/*}/o/$(encoded "${path#*/}/software/$1")?alt=media" \
      --output "$1.part"
  else
    cp -- "$BERT_JAX_JOB/software/$1" "$1.part"
  fi
  mv -- "$1.part" "$1"
}

# store FILE NAME: a file to this attempt's part of the job's directory.
store() {
  local path=${BERT_JAX_JOB#gs://} name=attempts/$BERT_JAX_ATTEMPT/$2
  if [[ $BERT_JAX_JOB == gs://* ]]; then
    storage \
      "$STORAGE/upload/storage/v1/b/${path%%/*}/o?uploadType=media&name=$(encoded "${path#*/}/$name")" \
      --output /dev/null --header 'Content-Type: text/plain' --data-binary "@$1"
  else
    mkdir -p -- "$BERT_JAX_JOB/attempts/$BERT_JAX_ATTEMPT"
    cp -- "$1" "$BERT_JAX_JOB/$name.part"
    mv -- "$BERT_JAX_JOB/$name.part" "$BERT_JAX_JOB/$name"
  fi
}

# tell STATE MESSAGE: the heartbeat of this host, until the agent takes over. Constants only.
tell() {
  printf '{"state": "%s", "message": "%s", "at": %d}\n' "$1" "$2" "$(date +%s)" >status.json
  store status.json "worker-$BERT_JAX_WORKER.json" || true
}

# Runs when the installation ends before its end: whoever waits for this host learns why.
not_installed() {
  exec >&"$out"
  exec 2>&"$err"
  cat -- "$log" >&2
  store "$log" "worker-$BERT_JAX_WORKER.log" || true
  tell failed 'bert-jax could not be installed; the log says why'
}

# Sets BERT_JAX_PYTHON: of an environment of its own, named after what is in it, made once.
install() {
  local software=$BERT_JAX_HOME/software environment wheel name hash uv
  mkdir -p -- "$software"
  cd -- "$software"
  exec {lock}>.lock
  flock "$lock" # of several hosts on one machine one installs
  log=$PWD/install-$BERT_JAX_WORKER.log
  exec {out}>&1 {err}>&2 >"$log" 2>&1
  trap not_installed EXIT

  fetch SHA256SUMS
  while read -r hash name; do
    [[ $hash =~ ^[0-9a-f]{64}$ && $name =~ ^[A-Za-z0-9_][A-Za-z0-9._+-]*$ ]] ||
      fail "SHA256SUMS: found \"$hash $name\", allowed: a hash and the name of a file"
    fetch "$name"
    [[ $name == *.whl ]] && wheel=$name
  done <SHA256SUMS
  sha256sum --check --strict --quiet SHA256SUMS
  [[ -n ${wheel:-} ]] || fail 'SHA256SUMS: found no wheel'

  environment=$BERT_JAX_HOME/environments/$(sha256sum SHA256SUMS | cut -c 1-16)
  if [[ ! -e $environment/installed ]]; then
    tell installing ''
    export UV_CACHE_DIR=$BERT_JAX_HOME/uv/cache UV_PYTHON_INSTALL_DIR=$BERT_JAX_HOME/uv/python
    if ! uv=$(command -v uv); then
      persistently python3 -m pip install --target "$BERT_JAX_HOME/uv" --upgrade "uv==$UV"
      uv=$BERT_JAX_HOME/uv/bin/uv
    fi
    # uv brings a Python where the image's own is another.
    persistently "$uv" venv --clear --python "$(<python-version)" "$environment"
    persistently "$uv" pip install --python "$environment/bin/python" --constraint constraints.txt \
      "bert-jax[tpu,gcp] @ file://$(encoded_path "$PWD/$wheel")"
    touch -- "$environment/installed"
  fi
  BERT_JAX_PYTHON=$environment/bin/python
  trap - EXIT
  exec >&"$out" {out}>&- {lock}>&-
  exec 2>&"$err" {err}>&-
  cd -- "$OLDPWD"
}

# encoded_path PATH: with its slashes.
encoded_path() {
  local path
  path=$(encoded "$1")
  printf '%s' "${path//%2F//}"
}

# Hands over to the agent: on a VM as a unit of systemd's, which sends SIGTERM to it alone, and while
# the network still stands, when the machine is taken back; a process of this script would be killed.
hand_over() {
  local name settings=()
  if [[ -z $on_tpu_vm ]]; then
    exec "$BERT_JAX_PYTHON" -m bert_jax.launch.host
  fi
  if systemctl is-active --quiet bert-jax; then
    return # this script was run by hand
  fi
  for name in BERT_JAX_JOB BERT_JAX_ATTEMPT BERT_JAX_WORKER BERT_JAX_HOME; do
    settings+=("--setenv=$name=${!name}")
  done
  exec systemd-run --unit=bert-jax --collect --working-directory=/ "${settings[@]}" \
    --property=After=network-online.target --property=KillMode=mixed \
    --property=TimeoutStopSec=600 --property=Restart=on-abnormal --property=RestartSec=10 \
    --property=OOMPolicy=continue --property=LimitMEMLOCK=infinity \
    --property=LimitNOFILE=1048576 \
    "$BERT_JAX_PYTHON" -m bert_jax.launch.host
}

who_am_i
if [[ -n $on_tpu_vm ]]; then
  mount_data
  BERT_JAX_HOME=${BERT_JAX_HOME:-/var/lib/bert-jax}
fi
export BERT_JAX_HOME=${BERT_JAX_HOME:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/bert_jax}
if [[ -z ${BERT_JAX_PYTHON:-} ]]; then
  install
fi
hand_over
