#!/usr/bin/env bash
# The longest write transactions of the index, by operation: of the tests and of the benches that
# write most. Use an idle machine.
#
#     benches/slow_writes.sh [ROUNDS] [FILTER]
#
# ROUNDS is 1. FILTER selects among the tests of tests/it, for instance `steps::`; with a FILTER, no bench runs.
# Times are in milliseconds: from BEGIN to the end of COMMIT, and without COMMIT, which waits for
# the disk. Transactions below 20 ms are not recorded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-1}
filter=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# report NAME: the longest of each operation, the longest first.
report() {
  printf '\n%s: %s transactions over 20 ms\n' "$1" "$(wc -l <"$scratch/writes")"
  printf '%10s %10s %6s  %s\n' whole statements count operation
  awk -F '\t' '
    { statements = $1 - $2; count[$3]++ }
    $1 > whole[$3] { whole[$3] = $1 }
    statements > longest[$3] { longest[$3] = statements }
    END { for (op in count) printf "%10.1f %10.1f %6d  %s\n", whole[op], longest[op], count[op], op }
  ' "$scratch/writes" | sort -rn
}

# record NAME COMMAND...: runs it with the recording on. A failure is reported after the figures.
record() {
  local name=$1 failed=0
  shift
  : >"$scratch/writes"
  ZORB_TEST_SLOW_WRITES=$scratch/writes "$@" >"$scratch/output" 2>&1 || failed=$?
  report "$name"
  if ((failed)); then
    tail -n 30 "$scratch/output"
    echo "$name failed"
    exit "$failed"
  fi
}

for ((round = 1; round <= rounds; round++)); do
  echo "round $round of $rounds"
  record "tests/it, in a debug build" cargo test --locked --features full-tests --test it -- "$filter"
  [[ -z $filter ]] || continue
  record "benches/gc" cargo bench --locked --features full-tests --bench gc
  record "tests of registrations in steps, in a release build" \
    cargo test --locked --release --features full-tests --test it -- steps::small
done
