#!/usr/bin/env bash
# Runs the tests of S3 against a real Garage, in place of the S3 store of the test process:
#   tests/garage.sh GARAGE [COMMAND...]
# GARAGE is the binary: cargo install garage --version 2.5.0 --locked. COMMAND has the address of the
# bucket in ZORB_TEST_S3; by default it is the tests. Everything is on loopback, in a temporary
# directory, and ends with this script.
set -euo pipefail
garage=$(realpath "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."

directory=$(mktemp -d)
server=
stop() {
  [[ -z $server ]] || { kill "$server" && wait "$server"; } || true
  rm -rf "$directory"
}
trap stop EXIT

read -r rpc api < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in sockets))')
cat >"$directory/garage.toml" <<END
metadata_dir = "$directory/meta"
data_dir = "$directory/data"
db_engine = "lmdb"
# As docs/s3.md asks for.
metadata_fsync = true
data_fsync = true
replication_factor = 1
rpc_bind_addr = "127.0.0.1:$rpc"
rpc_public_addr = "127.0.0.1:$rpc"
rpc_secret = "$(openssl rand -hex 32)"

[s3_api]
s3_region = "garage"
api_bind_addr = "127.0.0.1:$api"
END
chmod 600 "$directory/garage.toml"
export GARAGE_DEFAULT_ACCESS_KEY GARAGE_DEFAULT_SECRET_KEY GARAGE_DEFAULT_BUCKET=zorb
GARAGE_DEFAULT_ACCESS_KEY=GK$(openssl rand -hex 12)
GARAGE_DEFAULT_SECRET_KEY=$(openssl rand -hex 32)
"$garage" -c "$directory/garage.toml" server --single-node --default-bucket >"$directory/log" 2>&1 &
server=$!
for ((attempt = 0; ; attempt++)); do
  curl --silent --output /dev/null "http://127.0.0.1:$api/" && break
  if ! kill -0 "$server" 2>/dev/null || ((attempt == 300)); then
    cat "$directory/log" >&2
    exit 1
  fi
  sleep 0.1
done
export ZORB_TEST_S3="http://127.0.0.1:$api garage zorb $GARAGE_DEFAULT_ACCESS_KEY $GARAGE_DEFAULT_SECRET_KEY"

if (($# > 0)); then
  "$@"
else
  cargo test --locked --all-features --lib -- conformance::s3::
  cargo test --locked --all-features --test it -- s3::real::
fi
