#!/usr/bin/env bash
# What a newcomer does: a Debian with gcc, libc6-dev, make, git and the Rust compiler, nothing else of ours, a user without
# rights (uid 1000), a clone of the last commit, and the README's two commands from nothing. Prints how long each took.
#
# As root, with debootstrap and a network for apt and cargo; takes a quarter of an hour of 2 cores. The compiler is the one
# of this machine, copied: what is tested is what surrounds it.
#
#   tests/newcomer.sh [DIRECTORY]   # builds the chroot in DIRECTORY (a new temporary one, removed at the end)
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

[[ $EUID == 0 ]] || { echo "newcomer: a chroot needs root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "newcomer: install debootstrap" >&2; exit 2; }

root=${1:-}
if [[ -z $root ]]; then
  root=$(mktemp -d)
  remove=$root
fi
server=
clean() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  ! mountpoint -q "$root/proc" || umount "$root/proc"
  # Other mounts would be emptied with it; there are none of ours.
  [[ -z ${remove:-} ]] || rm -rf --one-file-system "$remove"
}
trap clean EXIT

# The user is the last thing to be made: a tree without it is incomplete, and is made anew.
if [[ ! -d $root/home/newcomer ]]; then
  debootstrap --variant=minbase --include=gcc,libc6-dev,make,git,ca-certificates bookworm "$root" >"$root.log" 2>&1 ||
    { tail "$root.log" >&2; exit 1; }
  rm "$root.log"
  mkdir "$root/opt/rust"
  sysroot=$(rustc --print sysroot)
  cp -a "$sysroot"/{bin,lib} "$root/opt/rust/"
  chroot "$root" useradd --uid 1000 --create-home --shell /bin/bash newcomer
fi
# `mktemp` makes a directory that only root can enter; here it is the root of the newcomer.
chmod 755 "$root"
mount -t proc proc "$root/proc"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Certificates that this machine trusts beyond Debian's, as behind a proxy that inspects.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
# What an installer writes and debootstrap does not.
echo '127.0.0.1 localhost' >"$root/etc/hosts"
chmod 644 "$root/etc/hosts" "$root/etc/resolv.conf" "$root/etc/ssl/certs/ca-certificates.crt"
# A clone needs a repository that user 1000 can read.
rm -rf "$root/srv/zorb.git"
git clone --quiet --bare "$repo" "$root/srv/zorb.git"
chown -R 1000:1000 "$root/srv/zorb.git"

as_newcomer() {
  chroot --userspec=1000:1000 "$root" env -i HOME=/home/newcomer USER=newcomer LANG=C.UTF-8 \
    PATH=/opt/rust/bin:/usr/bin:/bin bash -c "cd && $1"
}

as_newcomer 'rm -rf zorb && git clone --quiet /srv/zorb.git zorb'

began=$SECONDS
as_newcomer 'cd zorb && exec cargo run --release -- serve' >"$root/home/newcomer/serve.log" 2>&1 &
server=$!
until grep -q 'listening on http' "$root/home/newcomer/serve.log"; do
  kill -0 "$server" 2>/dev/null || { tail -20 "$root/home/newcomer/serve.log" >&2; exit 1; }
  sleep 1
done
echo "newcomer: cargo run --release -- serve: listens after $((SECONDS - began)) s"
# cargo waits for its child; the child is told.
pkill -TERM -P "$server" || kill "$server"
wait "$server" || true
server=

began=$SECONDS
as_newcomer 'cd zorb && cargo test 2>compile.log' | grep -E '^test result|FAILED|failed'
echo "newcomer: cargo test, from nothing: $((SECONDS - began)) s"
began=$SECONDS
as_newcomer 'cd zorb && cargo test --quiet' >/dev/null
echo "newcomer: cargo test again: $((SECONDS - began)) s"
