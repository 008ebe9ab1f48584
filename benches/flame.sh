#!/usr/bin/env bash
# Flame graphs of the server, one for each line of compare.sh that has a path of its own, and of large registrations in a
# store of 100 000 xorbs (5 GB, which stay in target/flame): target/flame/LINE.svg.
#
#   benches/flame.sh [LINE...]
#
# Lines: upload, ranges, single, cold, registration. All of them if none is named. Builds the release with frame pointers and names
# into a directory of its own. Needs perf (package linux-perf) and inferno (cargo install inferno), and for the names of the
# kernel's functions root. A sample is one of 997 per second and CPU, of time on a CPU; what the server waits
# for is not in the pictures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lines=("$@")
[[ ${#lines[@]} -gt 0 ]] || lines=(upload ranges single cold registration)

target=$PWD/target/flame
set=$target/set
server=$target/release/zorb
load=$target/release/examples/load

main() {
  local command line
  for command in perf inferno-collapse-perf inferno-flamegraph; do
    command -v "$command" >/dev/null || { echo "flame.sh needs $command" >&2 && exit 1; }
  done
  export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only RUSTFLAGS="-C force-frame-pointers=yes"
  cargo build --locked --release --quiet --target-dir "$target" --bin zorb --example load
  [[ -f $set/index.json ]] || "$load" make "$set" --count 24
  mkdir -p "$target"
  for line in "${lines[@]}"; do
    scratch=$(mktemp -d "$target/scratch.XXXXXX")
    if [[ $line == registration ]]; then
      record_registration
      continue
    fi
    trap stop EXIT
    start
    [[ $line == upload ]] || "$load" upload "$set" "$address" --connections 4 >/dev/null
    # What was uploaded went past the page cache; the load of `cold` drops it from there anyway.
    [[ $line == upload ]] || "$load" whole "$set" "$address" --connections 1 --once >/dev/null
    "record_$line"
    stop
  done
}

record_upload() { record upload upload --connections 1; }
record_ranges() { record ranges ranges --threads 2 --chunks 16 --seconds 5 --verify 64; }
record_single() { record single ranges --threads 2 --chunks 1 --seconds 5 --verify 64; }
record_cold() { record cold ranges --chunks 16 --cold "$scratch/data/xorbs" --verify 64; }

# A part of the bench `scale`, which does what the server does in a process of its own.
record_registration() {
  local bench
  bench=$(cargo bench --locked --target-dir "$target" --bench scale --no-run 2>&1 | sed -n 's,.*Executable .*(\(.*\)),\1,p')
  "$bench" 100000 --dir "$target/scale" --fill
  "$bench" 100000 --dir "$target/scale" --only registrations >"$scratch/out" 2>"$scratch/said" &
  pid=$!
  until grep --quiet measuring "$scratch/said"; do kill -0 "$pid" || exit 1; sleep 0.05; done
  samples --pid "$pid"
  # It says with its status whether all bounds were met.
  wait "$pid" || true
  draw registration
  grep registration "$scratch/out"
  rm -rf "$scratch"
}

# record NAME VERB [ARGUMENT...]
record() {
  samples --pid "$pid" -- "$load" "$2" "$set" "$address" --pid "$pid" "${@:3}"
  draw "$1"
}

# samples ARGUMENT...: until the command after -- has ended, or the process.
samples() {
  perf record --quiet --event cpu-clock --freq 997 --call-graph fp --output "$scratch/perf.data" "$@"
}

# draw NAME: the picture of what was sampled.
draw() {
  perf script --input "$scratch/perf.data" 2>/dev/null | inferno-collapse-perf >"$scratch/stacks" 2>/dev/null
  # Frames of less than a thousandth cannot be seen.
  inferno-flamegraph --title "zorb, $1" --minwidth 0.1 --width 1200 <"$scratch/stacks" >"$target/$1.svg"
  echo "$target/$1.svg: $(awk '{ time += $NF } END { printf "%.2f", time / 1e9 }' "$scratch/stacks") s of CPU"
}

start() {
  ZORB_LOG=error "$server" serve --listen 127.0.0.1:0 --data-dir "$scratch/data" >"$scratch/out" &
  pid=$!
  until [[ -s $scratch/out ]]; do kill -0 "$pid" || exit 1; sleep 0.05; done
  address=$(sed -n 's,^zorb listening on http://,,p' "$scratch/out")
}

stop() {
  trap - EXIT
  kill "$pid"
  wait "$pid" || true
  rm -rf "$scratch"
}

main
