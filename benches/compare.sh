#!/usr/bin/env bash
# zorb, nginx above the very same files, and the official client's test server, in turn, as ratios.
#
#   benches/compare.sh [ROUNDS [LINE...]]
#
# Lines: upload (one, four and eight at once), ranges (16 chunks), single (1 chunk), whole (xorbs), cold (16 chunks that
# are in no cache), mixed (warm reads beside cold ones, of the same server and of one that has no cold ones). All of them
# if none is named. ROUNDS is 5 if not given.
#
# Needs nginx, curl and python3, and some 6 GB of disk below target/. Every server has its defaults: zorb syncs what it
# acknowledges, and nginx is there once with sendfile and once without. examples/load sends the
# requests and compares what comes back; a wrong byte or a refused request ends the run. Everything measured is in
# target/compare/result.json, one run of `load` per line in target/compare/runs.jsonl. With COMPARE_BUILT=1 it builds
# nothing and takes the binaries that there are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-5}
lines=("${@:2}")
[[ ${#lines[@]} -gt 0 ]] || lines=(upload ranges single whole cold mixed)

# Seconds of each measurement that is not over when everything was read.
seconds=3

# How many of the responses are compared to the byte in a measurement that is about speed; before it, every byte is.
sampled=16

set=target/compare/set
load=target/release/examples/load

main() {
  need nginx curl python3 cargo
  if [[ -z ${COMPARE_BUILT:-} ]]; then
    cargo build --locked --release --quiet --bin zorb --example load
    cargo build --locked --release --quiet --manifest-path benches/official-server/Cargo.toml --target-dir target/official
  fi
  [[ -f $set/index.json ]] || "$load" make "$set" --count 24
  scratch=$(mktemp -d "$PWD/target/compare/scratch.XXXXXX")
  runs=target/compare/runs.jsonl
  : >"$runs"
  trap stop_all EXIT
  if [[ " ${lines[*]} " =~ \ (ranges|single|whole|cold|mixed)\  ]]; then
    start_zorb readable
    start_nginx
    "$load" upload "$set" "$zorb" --connections 4 >"$scratch/fill.out"
    sync
    link_by_hash
  fi
  local line
  for ((round = 1; round <= rounds; round++)); do
    for line in "${lines[@]}"; do
      echo "round $round of $rounds: $line" >&2
      "measure_$line"
    done
  done
  python3 benches/compare_report.py "$runs" target/compare/result.json
}

# The blobs under the names that requests have: zorb adds the incarnation to the hash. The same files, so the page cache has
# them once.
link_by_hash() {
  local blob hash
  for blob in "$scratch"/zorb-readable/xorbs/??/*; do
    hash=$(basename "${blob%.*}")
    mkdir -p "$scratch/by-hash/xorbs/${hash:0:2}"
    ln "$blob" "$scratch/by-hash/xorbs/${hash:0:2}/$hash"
  done
}

need() {
  local command missing=()
  for command in "$@"; do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  [[ ${#missing[@]} -eq 0 ]] || { echo "compare.sh needs ${missing[*]}" >&2 && exit 1; }
}

measure_upload() {
  upload upload-1 1 8
  upload upload-4 4 16
  upload upload-8 8 24
}

# upload NAME CONNECTIONS XORBS: to servers that have nothing yet.
upload() {
  local server
  for server in $(in_turn zorb official); do
    "start_$server" empty
    record "$1" "$server" upload "$(address_of "$server")" --target "$server" --pid "$(<"$scratch/$server-empty.pid")" \
      --connections "$2" --xorbs "$3"
    stop "$server-empty"
    rm -rf "$scratch/$server-empty"
    # What others have not written yet is not to be in the way of the next one.
    sync
  done
}

measure_ranges() { reads ranges ranges --threads 2 --chunks 16 --seconds "$seconds" --verify "$sampled"; }
measure_single() { reads single ranges --threads 2 --chunks 1 --seconds "$seconds" --verify "$sampled"; }
measure_whole() { reads whole whole --threads 2 --connections 4 --seconds "$seconds" --verify "$sampled"; }
measure_cold() { reads cold ranges --chunks 16 --cold "$scratch/by-hash/xorbs"; }
measure_mixed() { reads mixed mixed --served "$scratch/by-hash/xorbs"; }

# reads NAME VERB [ARGUMENT...]
reads() {
  local server servers=(zorb sendfile no-sendfile)
  [[ $1 == mixed ]] && servers=(beside "${servers[@]}")
  for server in $(in_turn "${servers[@]}"); do
    local address=$zorb target=zorb pid=zorb-readable other=()
    case $server in
      # The cold reads are zorb's, and its processor time and memory; the warm ones have a server of their own.
      beside) other=(--warm-address "$sendfile" --warm-target nginx) ;;
      sendfile) address=$sendfile target=nginx pid=nginx ;;
      no-sendfile) address=$no_sendfile target=nginx pid=nginx ;;
    esac
    # Warm, and right to the last byte; the cold lines compare all of it anyway.
    [[ $1 == cold || $1 == mixed ]] ||
      "$load" whole "$set" "$address" --target "$target" --connections 1 --once >"$scratch/warm.out"
    record "$1" "$server" "$2" "$address" --target "$target" --pid "$(<"$scratch/$pid.pid")" "${@:3}" "${other[@]}"
  done
}

# record LINE SERVER VERB ADDRESS [ARGUMENT...]
record() {
  local result
  result=$("$load" "$3" "$set" "$4" "${@:5}" --json)
  printf '{"line":"%s","server":"%s","round":%d,"result":%s}\n' "$1" "$2" "$round" "$result" >>"$runs"
}

# The names, every second round from the last to the first, so that nobody is always behind the same one.
in_turn() {
  if ((round % 2)); then printf '%s\n' "$@"; else printf '%s\n' "$@" | tac; fi
}

# start_zorb NAME; its address is in the variable zorb afterwards.
start_zorb() {
  local out=$scratch/zorb-$1.out
  rm -f "$out"
  ZORB_LOG=error target/release/zorb serve --listen 127.0.0.1:0 --data-dir "$scratch/zorb-$1" >"$out" 2>"$scratch/zorb-$1.log" &
  echo $! >"$scratch/zorb-$1.pid"
  until [[ -s $out ]]; do running "zorb-$1" && sleep 0.05; done
  local address
  address=$(sed -n 's,^zorb listening on http://,,p' "$out")
  if [[ $1 == readable ]]; then zorb=$address; else zorb_empty=$address; fi
}

start_official() {
  official=127.0.0.1:$(free_port)
  target/official/release/official-server "${official#*:}" "$scratch/official-$1" >"$scratch/official-$1.log" 2>&1 &
  echo $! >"$scratch/official-$1.pid"
  until curl -sf -o /dev/null "http://$official/health"; do running "official-$1" && sleep 0.05; done
}

# One nginx with two servers: the files with sendfile and without. Without tcp_nopush, which Debian's nginx.conf sets: with
# it and sendfile, one response in a hundred waits for 40 ms.
start_nginx() {
  sendfile=127.0.0.1:$(free_port)
  no_sendfile=127.0.0.1:$(free_port)
  cat >"$scratch/nginx.conf" <<CONF
daemon off;
worker_processes auto;
pid $scratch/nginx-own.pid;
error_log $scratch/nginx.log;
$([[ $EUID -ne 0 ]] || echo 'user root;')
events { worker_connections 768; }
http {
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path $scratch/body;
  proxy_temp_path $scratch/proxy;
  fastcgi_temp_path $scratch/fastcgi;
  uwsgi_temp_path $scratch/uwsgi;
  scgi_temp_path $scratch/scgi;
  root $scratch/by-hash;
  server { listen $sendfile; sendfile on; }
  server { listen $no_sendfile; sendfile off; }
}
CONF
  nginx -c "$scratch/nginx.conf" -e "$scratch/nginx.log" 2>"$scratch/nginx.err" &
  echo $! >"$scratch/nginx.pid"
  until curl -s -o /dev/null "http://$no_sendfile/"; do running nginx && sleep 0.05; done
}

address_of() {
  if [[ $1 == zorb ]]; then echo "$zorb_empty"; else echo "$official"; fi
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# running NAME: ends the script with what the process has said, if it does not run any more.
running() {
  kill -0 "$(<"$scratch/$1.pid")" 2>/dev/null || { cat "$scratch/$1.log" >&2 && exit 1; }
}

# stop NAME: ends the process and waits for its end.
stop() {
  local pid
  pid=$(<"$scratch/$1.pid")
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  rm -f "$scratch/$1.pid"
}

stop_all() {
  local file
  for file in "$scratch"/*.pid; do
    [[ $file == */nginx-own.pid || ! -e $file ]] || stop "$(basename "$file" .pid)"
  done
  rm -rf "$scratch"
}

main
