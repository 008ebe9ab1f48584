#!/usr/bin/env bash
# Throughput of archives against zstd itself and against tar | zstd, on the same blobs, in turn, as ratios.
#
#   benches/rca.sh [ROUNDS]
#
# Needs zstd, tar and python3. All use level 3 and read their input from the page cache. "zstd" is one stream of the
# blobs' contents without names or borders, so it is what the compression alone costs; "tar" is what people do. Neither
# of the two syncs or can be appended to: so each is run on a file system in memory, where a sync costs nothing, and on
# the disk, with one `sync` of the result at the end. "processor" is the same ratio of processor time, which says more on
# a busy machine; by the clock zstd and tar have the advantage of more threads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-5}
memory=$(mktemp -d -p /dev/shm)
disk=$(mktemp -d -p "${TMPDIR:-/tmp}")
trap 'rm -rf "$memory" "$disk"' EXIT
zorb=${ZORB_BINARY:-$PWD/target/release/zorb}

main() {
  [[ -n ${ZORB_BINARY-} ]] || cargo build --locked --release --quiet --bin zorb
  echo "what | zorb | zstd | of zstd | processor | tar, zstd | of it | processor"
  measure 256 1048576
  measure 4096 16384
}

# measure COUNT LEN: blobs of that many bytes each.
measure() {
  local count=$1 len=$2 name
  blobs=$memory/blobs
  rm -rf "$blobs" && mkdir "$blobs"
  make_blobs "$count" "$len"
  (cd "$blobs" && find . -type f -printf '%P\n' | sort >"$memory/names")
  total=$((count * len))
  name="$count x $((len / 1024)) KiB"
  compare "$name: append, in memory" append_zorb append_zstd append_tar "$memory"
  sizes
  compare "$name: append, on disk" append_zorb append_zstd append_tar "$disk"
  compare "$name: read all" read_zorb read_zstd read_tar "$memory"
  compare "$name: extract, in memory" extract_zorb read_zstd extract_tar "$memory"
  compare "$name: extract, on disk" extract_zorb read_zstd extract_tar "$disk"
}

# A quarter each: noise, words, floats, and blobs like an earlier one.
make_blobs() {
  python3 - "$blobs" "$1" "$2" <<'PYTHON'
import random, struct, sys
directory, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = random.Random(1)
words = [r.randbytes(r.randint(1, 6)).hex().encode() for _ in range(2000)]
earlier = b""
for n in range(count):
    if n % 4 == 0:
        blob = r.randbytes(size)
    elif n % 4 == 1:
        blob = b" ".join(r.choices(words, k=size // 4))[:size]
    elif n % 4 == 2:
        blob = b"".join(struct.pack("<f", r.gauss(0, 1)) for _ in range(size // 4))
    else:
        blob = bytearray(earlier)
        for _ in range(20):
            blob[r.randrange(size)] = r.randrange(256)
    earlier = earlier if n % 4 == 3 else blob
    with open(f"{directory}/{n:05}", "wb") as f:
        f.write(blob)
PYTHON
}

append_zorb() {
  (cd "$blobs" && "$zorb" rca create "$1/a.rca" -r . --quiet)
}

append_zstd() {
  (cd "$blobs" && xargs cat <"$memory/names" | zstd -3 -q -T1 --no-check -o "$1/a.zst" && sync "$1/a.zst")
}

append_tar() {
  tar -C "$blobs" -cf - -T "$memory/names" | zstd -3 -q -T1 -o "$1/a.tar.zst" && sync "$1/a.tar.zst"
}

read_zorb() {
  "$zorb" rca verify "$memory/a.rca" --quiet
}

read_zstd() {
  zstd -dcq "$memory/a.zst" >/dev/null
}

read_tar() {
  zstd -dcq "$memory/a.tar.zst" | tar -xOf - >/dev/null
}

extract_zorb() {
  "$zorb" rca extract "$memory/a.rca" -C "$1/out" --quiet
}

extract_tar() {
  mkdir "$1/out" && zstd -dcq "$memory/a.tar.zst" | tar -C "$1/out" -xf -
}

# timed COMMAND ARG...: milliseconds by the clock, and of all processors' time.
timed() {
  local TIMEFORMAT='%R %U %S'
  { time "$@" >&2; } 2>"$memory/time"
  awk '{ printf "%d %d ", $1 * 1000, ($2 + $3) * 1000 }' "$memory/time"
}

# compare WHAT ZORB ZSTD TAR DIRECTORY: what remains of the last round in memory is the next one's input.
compare() {
  local what=$1 directory=$5 lines=
  for ((round = 0; round < rounds; round++)); do
    rm -rf "${disk:?}"/* "$directory/out"
    if [[ $2 == append_* ]]; then rm -f "$directory"/a.*; fi
    lines+=$(timed "$2" "$directory")
    rm -rf "$directory/out"
    lines+=" $(timed "$3" "$directory")"
    lines+=" $(timed "$4" "$directory")"$'\n'
    rm -rf "$directory/out"
  done
  printf '%s' "$lines" | summarize "$what"
}

# Medians of the rounds; the ratios are taken round by round, and the lowest and the highest given.
summarize() {
  python3 -c '
import statistics, sys
what, total = sys.argv[1], int(sys.argv[2])
rows = [list(map(int, line.split())) for line in sys.stdin]
speed = lambda i: f"{total / 1000 / statistics.median(row[i] for row in rows):.0f} MB/s"
def ratio(i):
    ratios = [row[i] / row[0] for row in rows]
    cpu = statistics.median(row[i + 1] / row[1] for row in rows)
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {cpu:.2f}"
print(f"{what} | {speed(0)} | {speed(2)} | {ratio(2)} | {speed(4)} | {ratio(4)}", flush=True)
' "$1" "$total"
}

sizes() {
  local file
  for file in a.rca a.zst a.tar.zst; do
    printf '  %s: %s bytes of %s\n' "$file" "$(stat -c %s "$memory/$file")" "$total"
  done
}

main
