#!/usr/bin/env bash
# Throughput against nginx with the same bytes on the same machine, in turn, as ratios.
#
#   benches/against-nginx.sh [ROUNDS]
#
# Needs nginx and wrk. Downloads: nginx serves the very files that zorb has stored, by HTTP ranges
# that are the chunk ranges asked of zorb. Uploads: nginx takes the same bodies by PUT into files;
# it neither looks at them nor syncs them, so its figure is what the network and the page cache
# allow, not something a durable store can reach.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-5}
seconds=4
scratch=$(mktemp -d)
trap stop EXIT

stop() {
  # Process ids are in files, since a round runs in a subshell, which cannot change a variable here.
  cat "$scratch"/*.pid 2>/dev/null | xargs -r kill 2>/dev/null || true
  rm -rf "$scratch"
}

main() {
  cargo build --locked --release --quiet --bin zorb --example load --example official_xorb
  start_zorb 127.0.0.1:0
  start_nginx
  prepare
  printf '%-34s %14s %14s %7s\n' what zorb nginx ratio
  measure "ranges of 1 chunk, 16 conn." get one 16 requests/s
  measure "ranges of 16 chunks, 16 conn." get sixteen 16 requests/s
  measure "whole xorb, 4 conn." get whole 4 requests/s
  measure "uploads of 64 MiB, 4 conn." put 67100000 16 4
  measure "uploads of 1 MiB, 16 conn." put 1000000 256 16
}

# start_zorb ADDR:PORT
start_zorb() {
  target/release/zorb serve --listen "$1" --data-dir "$scratch/data" >"$scratch/zorb.out" 2>>"$scratch/zorb.log" &
  echo $! >"$scratch/zorb.pid"
  until [[ -s $scratch/zorb.out ]]; do sleep 0.1; done
  zorb=$(sed -n 's/^zorb listening on //p' "$scratch/zorb.out")
}

start_nginx() {
  local port=$((20000 + RANDOM % 12000))
  mkdir -p "$scratch/put"
  cat >"$scratch/nginx.conf" <<CONF
daemon off;
worker_processes 2;
pid $scratch/nginx.pid;
error_log $scratch/nginx.log;
user root;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  keepalive_requests 1000000;
  client_body_temp_path $scratch/body;
  server {
    listen 127.0.0.1:$port;
    location /xorbs/ { root $scratch/data; }
    location /put/ { root $scratch; dav_methods PUT; client_max_body_size 128m; }
  }
}
CONF
  nginx -c "$scratch/nginx.conf" -e "$scratch/nginx.log" &
  nginx=http://127.0.0.1:$port
  until curl -s -o "$scratch/null" "$nginx/"; do sleep 0.1; done
}

# One full xorb, its chunk ends, and a wrk script for each kind of range.
prepare() {
  local file
  file=$(target/release/examples/official_xorb "$scratch")
  hash=$(basename "$file" .xorb)
  curl -sS -o "$scratch/null" --data-binary "@$file" "$zorb/xorbs/$hash"
  curl -sS "$zorb/xorbs/$hash/chunks" | python3 -c '
import json, sys
print(0)
for chunk in json.load(sys.stdin)["chunks"]:
    print(chunk["serialized_offset"] + chunk["serialized_len"])' >"$scratch/ends"
  lua one 1
  lua sixteen 16
  lua whole 0
}

# lua NAME CHUNKS: requests random runs of so many chunks; 0 for the whole.
lua() {
  cat >"$scratch/$1.lua" <<LUA
local ends, count = {}, $2
for line in io.lines("$scratch/ends") do ends[#ends + 1] = tonumber(line) end
local prefix = nil
function init(args)
  prefix = args[1]
  math.randomseed(7)
end
function request()
  if count == 0 then return wrk.format("GET", prefix) end
  local first = math.random(0, #ends - 1 - count)
  if args_zorb == nil then args_zorb = not prefix:find("/xorbs/../", 1, false) end
  if args_zorb then
    return wrk.format("GET", prefix .. "?range=" .. first .. "-" .. (first + count))
  end
  local from, to = ends[first + 1], ends[first + 1 + count] - 1
  return wrk.format("GET", prefix, { Range = "bytes=" .. from .. "-" .. to })
end
LUA
}

# measure WHAT get LUA CONNECTIONS UNIT | measure WHAT put LEN COUNT CONNECTIONS
measure() {
  local what=$1 kind=$2 a b
  shift 2
  for ((round = 0; round < rounds; round++)); do
    a=$("$kind" zorb "$@")
    b=$("$kind" nginx "$@")
    echo "$a $b"
  done | python3 -c '
import statistics, sys
pairs = [tuple(map(float, line.split())) for line in sys.stdin]
ratios = [a / b for a, b in pairs]
middle = lambda numbers: statistics.median(numbers)
print("%-34s %11.0f MB/s %9.0f MB/s %7.2f  (%.2f to %.2f)" % (sys.argv[1],
    middle([a for a, _ in pairs]) / 1e6, middle([b for _, b in pairs]) / 1e6,
    middle(ratios), min(ratios), max(ratios)))' "$what"
}

# Bytes per second of the answers.
get() {
  local path=/xorbs/$hash base=$zorb
  [[ $1 == zorb ]] || { base=$nginx && path=/xorbs/${hash:0:2}/$hash; }
  wrk -t 1 -c "$3" -d "$seconds" -s "$scratch/$2.lua" "$base$path" -- "$path" |
    awk '/Transfer\/sec/ { v = $2; u = v; gsub(/[0-9.]/, "", u); gsub(/[A-Z]+/, "", v);
      m["B"] = 1; m["KB"] = 1024; m["MB"] = 1048576; m["GB"] = 1073741824; print v * m[u] }'
}

# Bytes per second of the bodies.
put() {
  if [[ $1 == zorb ]]; then
    target/release/examples/load POST "$zorb/xorbs" "$2" "$3" "$4"
    clear_zorb
  else
    target/release/examples/load PUT "$nginx/put" "$2" "$3" "$4"
    rm -rf "$scratch"/put/*
  fi | awk '{ print $1 }'
}

# The next round has to store its xorbs again: a fresh store.
clear_zorb() {
  local pid
  pid=$(<"$scratch/zorb.pid")
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  rm -rf "$scratch/data" "$scratch/zorb.out"
  start_zorb "${zorb#http://}"
}

main
