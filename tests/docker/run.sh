#!/usr/bin/env bash
# Builds the image and runs the real docker-compose.yml: healthy, a round trip through the
# published port, a restart with the data still there, a clean stop. .ci/run calls it.
#
#   tests/docker/run.sh
#
# Where no container engine responds, it says so and succeeds. It disturbs nothing that runs: its own
# project name, a free port; and removes its container, network and volume in any case. Images stay.
#
# Environment (defaults in brackets):
#   ZORB_BUILD_IMAGE, ZORB_RUNTIME_IMAGE
#                       base images, both or neither        [stand-ins made by base-images.sh]
#   ZORB_IMAGE          what to call the image              [zorb:test]
#   ZORB_PORT           port on 127.0.0.1                   [a free one]
#   ZORB_XORB           xorb to send, named <hash>.xorb     [packed for the purpose]
#   ZORB_BIN            binary that packs it                [the one in the image]
#   ZORB_RANGES         how many random ranges to fetch     [20]
#   ZORB_ROUNDTRIP      instead of the round trip here, a command called with
#                       `<base-url> upload` before the restart and `<base-url> check` after it, in
#                       whose environment ZORB_ROUNDTRIP_DIR names a dir that lasts from the one
#                       to the other; words are split at spaces
#   ZORB_QUICK_BUILD    if set, the binary is optimised less [not set]
#   ZORB_BINARY_TO      where to put a copy of the binary   [nowhere]
#                       of the image
#   HEALTHY_WITHIN      seconds                             [60]
#   COMPOSE             the Compose command                 [docker compose, else docker-compose]
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)

project=zorb-test-$$
healthy_within=${HEALTHY_WITHIN:-60}
range_count=${ZORB_RANGES:-20}

scratch=
compose_command=()
compose_version=
container=
base_url=

say() { printf 'container test [%4ds]: %s\n' "$SECONDS" "$*"; }
die() {
  printf 'container test [%4ds]: FAILED: %s\n' "$SECONDS" "$*" >&2
  exit 1
}

main() {
  if ! engine_responses; then
    echo "container test: not run, because no container engine responds here ('docker info' fails)"
    return
  fi
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/zorb-docker.XXXXXX")
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM

  find_base_images
  find_compose
  export ZORB_IMAGE=${ZORB_IMAGE:-zorb:test}
  [[ -n ${ZORB_PORT:-} ]] || ZORB_PORT=$(free_port)
  export ZORB_PORT
  base_url=http://127.0.0.1:$ZORB_PORT

  build
  [[ -z ${ZORB_BINARY_TO:-} ]] || copy_binary
  start
  check_confinement
  round_trip upload
  restart
  round_trip check
  stop
  say "passed"
}

engine_responses() {
  command -v docker >/dev/null && timeout 30 docker info >/dev/null 2>&1
}

find_base_images() {
  if [[ -n ${ZORB_BUILD_IMAGE:-} && -n ${ZORB_RUNTIME_IMAGE:-} ]]; then
    say "base images: $ZORB_BUILD_IMAGE and $ZORB_RUNTIME_IMAGE"
    return
  fi
  [[ -z ${ZORB_BUILD_IMAGE:-}${ZORB_RUNTIME_IMAGE:-} ]] ||
    die "set both ZORB_BUILD_IMAGE and ZORB_RUNTIME_IMAGE, or neither"
  export ZORB_BUILD_IMAGE=zorb-base/build:local ZORB_RUNTIME_IMAGE=zorb-base/runtime:local
  say "base images: stand-ins from this machine's packages"
  "$here/base-images.sh"
}

find_compose() {
  if [[ -n ${COMPOSE:-} ]]; then
    read -ra compose_command <<<"$COMPOSE"
  elif docker compose version >/dev/null 2>&1; then
    compose_command=(docker compose)
  else
    command -v docker-compose >/dev/null || install_compose
    compose_command=(docker-compose)
  fi
  compose_version=$("${compose_command[@]}" version --short)
  say "${compose_command[*]} $compose_version"
}

install_compose() {
  say "installing docker-compose"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker-compose >/dev/null
}

compose() {
  "${compose_command[@]}" --ansi never --project-name "$project" \
    --project-directory "$root" --file "$root/docker-compose.yml" "$@"
}

free_port() {
  local port
  for _ in {1..50}; do
    # Below the ports that the kernel gives to outgoing connections.
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  die "found no free port"
}

# quietly NAME COMMAND...: what it prints is shown only if it fails.
quietly() {
  local log=$scratch/$1.log
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    die "$*"
  fi
}

build() {
  local options=()
  # The classic builder leaves the container of a failed step behind, unless told not to; the plugin
  # has no such option.
  [[ $compose_version != 1.* ]] || options=(--force-rm)
  [[ -z ${ZORB_QUICK_BUILD:-} ]] || options+=(
    --build-arg CARGO_PROFILE_RELEASE_LTO=off
    --build-arg CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    --build-arg CARGO_PROFILE_RELEASE_OPT_LEVEL=1
  )
  say "building $ZORB_IMAGE"
  quietly build compose build "${options[@]}"
  say "built: $(docker image inspect --format '{{.Size}}' "$ZORB_IMAGE") bytes"
}

copy_binary() {
  local stopped
  stopped=$(docker create "$ZORB_IMAGE")
  docker cp "$stopped:/usr/local/bin/zorb" "$ZORB_BINARY_TO" >/dev/null
  docker rm "$stopped" >/dev/null
}

start() {
  quietly up compose up -d --no-build
  container=$(compose ps -q zorb)
  [[ -n $container ]] || die "Compose started no container"
  wait_healthy
}

wait_healthy() {
  local began=$SECONDS state
  while ((SECONDS - began < healthy_within)); do
    state=$(docker inspect --format '{{.State.Status}} {{.State.Health.Status}}' "$container")
    case $state in
      'running healthy')
        say "healthy after $((SECONDS - began)) s"
        return
        ;;
      'running starting') sleep 1 ;;
      *) break ;;
    esac
  done
  docker inspect --format '{{range .State.Health.Log}}{{.ExitCode}} {{.Output}}{{println}}{{end}}' \
    "$container" >&2 || true
  die "not healthy after $((SECONDS - began)) s: $state"
}

# What the Dockerfile and the Compose file promise about confinement.
check_confinement() {
  local published
  [[ $(docker exec "$container" id -u) == 10001 ]] || die "the server does not run as uid 10001"
  ! docker exec "$container" touch /usr/local/bin/x 2>/dev/null || die "the root file system is writable"
  published=$(docker port "$container")
  [[ $published == "8080/tcp -> 127.0.0.1:$ZORB_PORT" ]] || die "published otherwise: $published"
  # Commands find the server's settings and its store by the environment of the image.
  docker exec "$container" zorb gc --dry-run >/dev/null || die "a command in the container does not find the store"
  [[ $(docker exec "$container" zorb token issue --scope read --repo x) == zorb_* ]] || die "no token from the container"
  docker exec "$container" sh -c 'test ! -e zorb-data' || die "a command has made a store of its own"
  say "runs as uid 10001, read-only but for the volume, published as $published"
}

# round_trip upload|check
round_trip() {
  local step=$1 command
  if [[ -n ${ZORB_ROUNDTRIP:-} ]]; then
    read -ra command <<<"$ZORB_ROUNDTRIP"
    say "$ZORB_ROUNDTRIP $base_url $step"
    ZORB_ROUNDTRIP_DIR=$scratch "${command[@]}" "$base_url" "$step" || die "round trip: $step"
    return
  fi
  if [[ $step == upload ]]; then
    find_xorb
    find_chunk_ends
    http "" --request POST --upload-file "$xorb"
    say "uploaded $xorb_hash: $(stat -c %s "$xorb") bytes, $((${#ends[@]} - 1)) chunks; $(<"$scratch/response")"
  fi
  check_xorb
}

xorb=
xorb_hash=
# Offset at which each chunk ends, after a 0 for where the first begins.
ends=()

find_xorb() {
  if [[ -n ${ZORB_XORB:-} ]]; then
    xorb=$ZORB_XORB
  else
    pack_xorb
    local packed=("$scratch"/packed/*.xorb)
    [[ ${#packed[@]} == 1 && -f ${packed[0]} ]] || die "packed ${#packed[@]} xorbs: ${packed[*]}"
    xorb=${packed[0]}
  fi
  xorb_hash=$(basename -- "$xorb" .xorb)
  [[ $xorb_hash =~ ^[0-9a-f]{64}$ ]] || die "$xorb is not named after its hash"
}

# Some that does not compress, some that does.
pack_xorb() {
  mkdir "$scratch/packed"
  { head -c 3000000 /dev/urandom && for _ in {1..20}; do cat "$root/Cargo.lock"; done; } >"$scratch/sample"
  if [[ -n ${ZORB_BIN:-} ]]; then
    quietly pack "$ZORB_BIN" xorb pack "$scratch/sample" -o "$scratch/packed"
  else
    docker exec -i "$container" sh -ec '
      mkdir /tmp/packed
      cat >/tmp/sample
      zorb xorb pack /tmp/sample -o /tmp/packed >&2
      tar -C /tmp/packed -cf - .
      rm -r /tmp/sample /tmp/packed' <"$scratch/sample" 2>"$scratch/pack.log" |
      tar -C "$scratch/packed" -xf - || die "zorb xorb pack: $(<"$scratch/pack.log")"
  fi
}

# Walks the chunk headers: a zero byte, payload length (3 bytes, little endian), scheme, raw length.
# Reads them here instead of asking the server, whose word is what is under test.
find_chunk_ends() {
  local size at=0 header
  size=$(stat -c %s "$xorb")
  ends=(0)
  while ((at + 8 <= size)); do
    read -ra header < <(od -An -v -tu1 -j "$at" -N 4 "$xorb")
    # Not a chunk but the footer, which a server does not keep.
    ((header[0] == 0)) || break
    ((at += 8 + header[1] + (header[2] << 8) + (header[3] << 16)))
    ends+=("$at")
  done
  ((${#ends[@]} > 1 && at <= size)) || die "$xorb holds no whole chunks"
}

check_xorb() {
  local count=$((${#ends[@]} - 1)) first last i
  fetch_and_compare "" 0 "$count"
  fetch_and_compare "?range=0-1" 0 1
  fetch_and_compare "?range=$((count - 1))-$count" $((count - 1)) "$count"
  for ((i = 0; i < range_count; i++)); do
    first=$(((RANDOM << 15 | RANDOM) % count))
    last=$((first + 1 + (RANDOM << 15 | RANDOM) % (count - first)))
    fetch_and_compare "?range=$first-$last" "$first" "$last"
  done
  say "the whole xorb and $((range_count + 2)) chunk ranges came back byte-identical"
}

# fetch_and_compare QUERY FIRST LAST: the bytes of the chunks [FIRST, LAST).
fetch_and_compare() {
  local query=$1 from=${ends[$2]} len=$((${ends[$3]} - ${ends[$2]})) received
  http "$query"
  received=$(stat -c %s "$scratch/response")
  [[ $received == "$len" ]] || die "GET /xorbs/$xorb_hash$query: $received bytes instead of $len"
  cmp --ignore-initial="$from:0" --bytes="$len" "$xorb" "$scratch/response" ||
    die "GET /xorbs/$xorb_hash$query: other bytes"
}

# http QUERY [CURL OPTION...]: the response's body goes to $scratch/response.
http() {
  local path=/xorbs/$xorb_hash$1 status
  shift
  status=$(curl --silent --show-error --max-time 120 --output "$scratch/response" \
    --write-out '%{http_code}' "$@" "$base_url$path") || die "$path: curl failed"
  [[ $status == 20[01] ]] || die "$path responded $status: $(head -c 400 "$scratch/response")"
}

restart() {
  local before
  before=$(started_at)
  quietly restart compose restart
  [[ $(started_at) != "$before" ]] || die "Compose did not restart the container"
  say "restarted"
  wait_healthy
}

started_at() { docker inspect --format '{{.State.StartedAt}}' "$container"; }

stop() {
  local code began=$SECONDS
  quietly stop compose stop
  code=$(docker inspect --format '{{.State.ExitCode}}' "$container")
  [[ $code == 0 ]] || die "SIGTERM: exit code $code"
  say "SIGTERM: exit code 0 within $((SECONDS - began + 1)) s"
}

clean_up() {
  local code=$?
  trap - EXIT
  if [[ $code != 0 && -n $container ]]; then
    echo "--- the server's log" >&2
    docker logs --tail 100 "$container" >&2 || true
  fi
  if ((${#compose_command[@]} > 0)); then
    compose down --volumes --timeout 5 >"$scratch/down.log" 2>&1 || cat "$scratch/down.log" >&2
  fi
  rm -rf -- "$scratch"
  exit "$code"
}

main "$@"
