#!/usr/bin/env bash
# The longest write transactions of the index, by operation: of the tests and of the benches that
# write most. Use an idle machine.
#
#     benches/slow_writes.sh [ROUNDS] [FILTER]
#
# ROUNDS is 1. FILTER selects among the tests of tests/it, for instance `steps::`; with a FILTER, no bench runs.
# Needs PostgreSQL 15, as the tests with all features do.
# Times are in milliseconds: from BEGIN to the end of COMMIT, and without COMMIT, which waits for
# the disk. Transactions below 20 ms are not recorded. After several rounds the medians are printed:
# an operation that was below 20 ms in most of them has a 0.
#
# Beside each part another process writes 4 KiB into a file and syncs it, ten times a second. How
# long that takes is what the disk adds to a commit, whatever is in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-1}
filter=${2:-}
scratch=$(mktemp -d)
probe=
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
failures=()

finish() {
  [[ -z $probe ]] || kill "$probe" 2>/dev/null || true
  rm -rf "$scratch"
}

# longest FILE: the longest transaction of each operation, with and without its commit.
longest() {
  awk -F '\t' '
    { statements = $1 - $2; count[$3]++ }
    $1 > whole[$3] { whole[$3] = $1 }
    statements > longest[$3] { longest[$3] = statements }
    END { for (op in count) printf "%.1f\t%.1f\t%d\t%s\n", whole[op], longest[op], count[op], op }
  ' "$1" | sort -rn
}

# sync_repeatedly FILE: until it is stopped, appends the milliseconds of each write and sync of 4 KiB to FILE.
sync_repeatedly() {
  exec python3 -c '
import os, sys, time
file = os.open(sys.argv[1] + ".probed", os.O_RDWR | os.O_CREAT, 0o600)
with open(sys.argv[1], "a", buffering=1) as times:
    while True:
        os.pwrite(file, os.urandom(4096), 0)
        began = time.monotonic()
        os.fdatasync(file)
        print(f"{(time.monotonic() - began) * 1000:.2f}", file=times)
        time.sleep(0.1)
' "$1"
}

# print_probe FILE
print_probe() {
  sort -n "$1" | awk '{ t[NR] = $1 } END {
    if (NR) printf "a sync of 4 KiB beside it: median %.1f ms, p99 %.1f, longest %.1f, of %d\n", t[int((NR + 1) / 2)], t[int(NR * 0.99 + 0.5)], t[NR], NR
  }'
}

# record PART COMMAND...: runs it with the recording on, and prints the longest. Continues after a failure, which a
# bench reports for a long transaction, too.
record() {
  local part=$1 writes
  writes=$scratch/$round-${1//\//_}
  shift
  : >"$writes"
  : >"$scratch/syncs"
  sync_repeatedly "$scratch/syncs" &
  probe=$!
  if ! ZORB_TEST_SLOW_WRITES=$writes "$@" >"$scratch/output" 2>&1; then
    failures+=("round $round: $part")
    tail -n 30 "$scratch/output"
  fi
  kill "$probe" 2>/dev/null || true
  wait "$probe" 2>/dev/null || true
  probe=
  printf '\n%s, round %s: %s transactions over 20 ms\n' "$part" "$round" "$(wc -l <"$writes")"
  printf '%10s %10s %6s  %s\n' whole statements count operation
  longest "$writes" | awk -F '\t' '{ printf "%10.1f %10.1f %6d  %s\n", $1, $2, $3, $4 }'
  print_probe "$scratch/syncs"
}

# medians PART: of the rounds.
medians() {
  local file
  printf '\n%s, medians of %s rounds\n%10s %10s  %s\n' "$1" "$rounds" whole statements operation
  for file in "$scratch"/*-"${1//\//_}"; do longest "$file"; done | awk -F '\t' -v rounds="$rounds" '
    function median(values, op,   sorted, n, i, j, t) {
      n = split(values[op], sorted, " ")
      while (n < rounds) sorted[++n] = 0
      for (i = 1; i < n; i++)
        for (j = i + 1; j <= n; j++)
          if (sorted[j] + 0 < sorted[i] + 0) { t = sorted[i]; sorted[i] = sorted[j]; sorted[j] = t }
      return sorted[int((n + 1) / 2)]
    }
    { whole[$4] = whole[$4] " " $1; statements[$4] = statements[$4] " " $2 }
    END { for (op in whole) printf "%10.1f %10.1f  %s\n", median(whole, op), median(statements, op), op }
  ' | sort -rn
}

# Compilers would keep the disk busy.
cargo build --locked -p zorb-fake-s3
cargo test --locked --all-features --test it --no-run
if [[ -z $filter ]]; then
  cargo bench --locked --features full-tests --bench gc --no-run
  cargo test --locked --release --features full-tests --test it --no-run
fi

parts=("tests/it, in a debug build" "benches/gc" "tests of registrations in steps, in a release build")
for ((round = 1; round <= rounds; round++)); do
  record "${parts[0]}" cargo test --locked --all-features --test it -- "$filter"
  [[ -z $filter ]] || continue
  record "${parts[1]}" cargo bench --locked --features full-tests --bench gc
  record "${parts[2]}" cargo test --locked --release --features full-tests --test it -- steps::small
done
[[ -z $filter ]] || parts=("${parts[0]}")
if ((rounds > 1)); then
  for part in "${parts[@]}"; do medians "$part"; done
fi
if ((${#failures[@]})); then
  printf 'failed: %s\n' "${failures[@]}"
  exit 1
fi
