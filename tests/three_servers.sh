#!/usr/bin/env bash
# Most tests of tokens, hostile requests, quotas, and the rights and lists of the Hub again, with
# three servers of one store in PostgreSQL and a bucket: each request goes to the next server.
#
#     tests/three_servers.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

selected=(auth:: traps:: quota:: hub::accounts hub::catalog hub::last_commit hub::lfs hub::namespace hub::rights hub::squash)
# These look at the data directory, at the metrics or at the URL of one server, or need grants. The
# last two expect that a key is dropped at once, which several servers do half a second later, and
# that no server has stored another blob of a xorb, which is then deleted.
of_one=(
  commands_for_accounts record_of_a_registration as_many_win forwarded_headers nothing_of_a_token
  rotated_key one_xorb_from_eight_clients
)

it=(cargo test --locked --all-features --test it --)
# A name that selects nothing would be no error.
names=$("${it[@]}" --list --format terse)
for name in "${selected[@]}" "${of_one[@]}"; do
  grep --quiet --fixed-strings "$name" <<<"$names" || { echo "no test has the name $name" && exit 1; }
done
skips=()
for name in "${of_one[@]}"; do skips+=(--skip "$name"); done
ZORB_TEST_STORE=s3 ZORB_TEST_SERVERS=3 "${it[@]}" "${selected[@]}" "${skips[@]}"
