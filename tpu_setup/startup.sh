#!/usr/bin/env bash
# Every host of a job runs this script at its start, and again after a reboot.
#
# The script finds the job's directory and this host's index, installs the staged lock and wheel into a
# virtual environment, and starts the agent, `python -m bert_jax.launch.host`. The script is the same
# for every job. It reads the user's settings from files and variables, and never runs them as
# commands.
#
#   BERT_JAX_JOB       gs://BUCKET/jobs/NAME, or a directory. Default, on a Cloud TPU VM: the metadata
#                      attributes bert-jax-job and bert-jax-attempt set the job and the attempt.
#   BERT_JAX_ATTEMPT   number of the attempt.
#   BERT_JAX_WORKER    index of the host in the attempt, from 0. Default: from the variables of TPU or Kubernetes.
#   BERT_JAX_PYTHON    a Python with bert-jax: in a container, or on this machine. Default: install
#                      bert-jax from the job's directory.
#   BERT_JAX_HOME      directory of this host for virtual environments, caches and datasets.
#   BERT_JAX_ROOT      prefix of system paths, for tests.
set -euo pipefail

readonly STORAGE=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
readonly METADATA=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
readonly FIRST_PAUSE=${BERT_JAX_PAUSE_SECONDS:-5}

readonly DISK=${BERT_JAX_ROOT:-}/dev/disk/by-id/google-persistent-disk-1
readonly DATA=${BERT_JAX_ROOT:-}/mnt/disks/data
readonly HUGE_PAGES=${BERT_JAX_ROOT:-}/sys/kernel/mm/transparent_hugepage/enabled

fail() {
  printf 'bert-jax: %s\n' "$*" >&2
  exit 2
}

# number NAME VALUE: prints VALUE, or fails if it is no number. In other text, Bash arithmetic would run
# commands.
number() {
  [[ $2 =~ ^[0-9]{1,9}$ ]] || fail "$1: found \"$2\", allowed: a number"
  printf '%d' "$((10#$2))"
}

# persistently COMMAND…: tries the command six times within about five minutes.
persistently() {
  local pause=$FIRST_PAUSE tries=0
  until "$@"; do
    ((++tries < 6)) || return 1
    sleep "$pause"
    pause=$((pause * 2))
  done
}

# metadata PATH: prints a metadata value of this Cloud TPU VM.
metadata() {
  persistently curl --silent --show-error --fail --max-time 30 --header 'Metadata-Flavor: Google' \
    "$METADATA/$1"
}

# count_hosts LIST: prints the number of hosts in a comma-separated list.
count_hosts() {
  local commas=${1//[^,]/}
  printf '%d' "$((${#commas} + 1))"
}

# Sets BERT_JAX_JOB, BERT_JAX_ATTEMPT and BERT_JAX_WORKER if they are unset.
identify_host() {
  local slice id hosts
  on_tpu_vm=
  if [[ -z ${BERT_JAX_JOB:-} ]]; then
    on_tpu_vm=yes
    BERT_JAX_JOB=$(metadata attributes/bert-jax-job)
    BERT_JAX_ATTEMPT=$(metadata attributes/bert-jax-attempt)
    id=$(metadata attributes/agent-worker-number)
    hosts=$(metadata attributes/worker-network-endpoints)
    slice=$(metadata attributes/tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *['\"]\{0,1\}\([^'\"[:space:]]*\).*/\1/p")
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
    fail "BERT_JAX_JOB: found \"$BERT_JAX_JOB\", allowed: gs://BUCKET/… or an absolute path"
  export BERT_JAX_JOB BERT_JAX_ATTEMPT BERT_JAX_WORKER
}

# Mounts the job's data disk (submit.data_disk), if any, read-only: other machines share it.
mount_data() {
  if [[ -e $DISK ]] && ! mountpoint --quiet "$DATA"; then
    mkdir -p "$DATA"
    mount -o ro,noload "$DISK" "$DATA"
  fi
}

# Enables huge pages: without them, the TPU's runtime starts and ends slowly, as JAX warns.
enable_huge_pages() {
  if [[ -w $HUGE_PAGES ]]; then
    echo always >"$HUGE_PAGES"
  fi
}

# encoded TEXT: prints the text, percent-encoded for a URL.
encoded() {
  local LC_ALL=C text=$1 at
  for ((at = 0; at < ${#text}; at++)); do
    case ${text:at:1} in
      [A-Za-z0-9._~-]) printf '%s' "${text:at:1}" ;;
      *) printf '%%%02X' "'${text:at:1}" ;;
    esac
  done
}

# storage URL ARGUMENT…: sends a request to Cloud Storage. Passes the token by standard input, because
# all users can see a process's arguments.
storage() {
  local token url=$1
  shift
  token=$(metadata service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p')
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --silent --show-error --fail --max-time 600 --config - "$@" "$url"
}

# fetch NAME: copies a file of the job's directory to the working directory.
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

# store FILE NAME: copies a file to the attempt's directory in the job's directory.
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

# report STATE MESSAGE: writes this host's heartbeat before the agent runs. Does not escape its arguments.
report() {
  printf '{"state": "%s", "message": "%s", "at": %d}\n' "$1" "$2" "$(date +%s)" >status.json
  store status.json "worker-$BERT_JAX_WORKER.json" || true
}

# Runs if the installation fails: reports the failure to the supervisor.
not_installed() {
  exec >&"$out"
  exec 2>&"$err"
  cat -- "$log" >&2
  store "$log" "worker-$BERT_JAX_WORKER.log" || true
  report failed 'installing bert-jax failed; see the log of this host'
}

# Installs the lock and bert-jax into an environment named after the hash of their files, unless the
# environment exists. Nothing else on the machine decides which versions it gets. Sets BERT_JAX_PYTHON.
install() {
  local software=$BERT_JAX_HOME/software environment wheel name hash uv
  mkdir -p -- "$software"
  cd -- "$software"
  exec {lock}>.lock
  flock "$lock" # only one of several hosts on a machine installs
  log=$PWD/install-$BERT_JAX_WORKER.log
  exec {out}>&1 {err}>&2 >"$log" 2>&1
  trap not_installed EXIT

  fetch SHA256SUMS
  while read -r hash name; do
    [[ $hash =~ ^[0-9a-f]{64}$ && $name =~ ^[A-Za-z0-9_][A-Za-z0-9._+-]*$ ]] ||
      fail "SHA256SUMS: found \"$hash $name\", allowed: a hash and the name of a file"
    fetch "$name"
    case $name in
      bert_jax-*.whl) wheel=$name ;;
      uv-*.whl) uv=$name ;;
    esac
  done <SHA256SUMS
  sha256sum --check --strict --quiet SHA256SUMS
  [[ -n ${wheel:-} && -n ${uv:-} ]] || fail 'SHA256SUMS: found no wheel of bert-jax or no wheel of uv'

  environment=$BERT_JAX_HOME/environments/$(sha256sum SHA256SUMS | cut -c 1-16)
  if [[ ! -e $environment/installed ]]; then
    report installing ''
    export UV_CACHE_DIR=$BERT_JAX_HOME/uv/cache UV_PYTHON_INSTALL_DIR=$BERT_JAX_HOME/uv/python
    # Images may lack pip. A wheel is an archive that every Python can unpack.
    rm -rf -- "$BERT_JAX_HOME/uv/wheel"
    python3 -m zipfile -e "$uv" "$BERT_JAX_HOME/uv/wheel"
    uv=$(echo "$BERT_JAX_HOME"/uv/wheel/uv-*.data/scripts/uv)
    chmod +x "$uv"
    # uv downloads a Python if the image has another version.
    persistently "$uv" venv --clear --python "$(<python-version)" "$environment"
    persistently "$uv" pip install --python "$environment/bin/python" \
      --no-build --require-hashes --requirement requirements.txt
    "$uv" pip install --python "$environment/bin/python" --no-deps "./$wheel"
    "$uv" pip check --python "$environment/bin/python"
    touch -- "$environment/installed"
  fi
  BERT_JAX_PYTHON=$environment/bin/python
  trap - EXIT
  exec >&"$out" {out}>&- {lock}>&-
  exec 2>&"$err" {err}>&-
  cd -- "$OLDPWD"
}

# Starts the agent. On a VM it is a systemd unit: at a preemption, systemd sends SIGTERM to the agent only,
# while the network is still up. A child of this script would be killed at once.
start_agent() {
  local name settings=()
  if [[ -z $on_tpu_vm ]]; then
    exec "$BERT_JAX_PYTHON" -m bert_jax.launch.host
  fi
  if systemctl is-active --quiet bert-jax; then
    return # the agent already runs: a user started this script by hand
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

identify_host
if [[ -n $on_tpu_vm ]]; then
  mount_data
  enable_huge_pages
  BERT_JAX_HOME=${BERT_JAX_HOME:-/var/lib/bert-jax}
fi
export BERT_JAX_HOME=${BERT_JAX_HOME:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/bert_jax}
if [[ -z ${BERT_JAX_PYTHON:-} ]]; then
  install
fi
start_agent
