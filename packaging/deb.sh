#!/usr/bin/env bash
# Builds a Debian package from a release binary. Needs dpkg-deb and gzip.
#
#   packaging/deb.sh [BINARY [DIRECTORY]]
#
# BINARY: default target/release/zorb, which is built if no binary is named. DIRECTORY: default
# target/debian. Prints the path of the package. The script runs the binary for its version, manual
# pages and completions, so it must match the architecture of this machine. The package needs the C
# library of the build system or a newer one: build on the oldest release in use.
#
# SOURCE_DATE_EPOCH sets the time of every file in the package, for reproducible packages. The
# default is the time of the last commit or, without a git repository, the present time.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
scratch=

die() {
  printf 'deb.sh: %s\n' "$*" >&2
  exit 1
}

main() {
  [[ $# -le 2 && ${1:-} != -* ]] || die "usage: packaging/deb.sh [BINARY [DIRECTORY]]"
  local binary=${1:-} directory=${2:-$root/target/debian}
  if [[ -z $binary ]]; then
    cargo build --release --locked --features postgres,s3 --bin zorb --manifest-path "$root/Cargo.toml" >&2
    binary=${CARGO_TARGET_DIR:-$root/target}/release/zorb
  fi
  [[ -x $binary ]] || die "$binary is not an executable file"
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
  export SOURCE_DATE_EPOCH

  scratch=$(mktemp -d "${TMPDIR:-/tmp}/zorb-deb.XXXXXX")
  trap 'rm -rf -- "$scratch"' EXIT
  local tree=$scratch/zorb
  install_files "$binary" "$tree"
  control "$binary" "$tree"
  find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

  mkdir -p "$directory"
  local package
  package=$directory/zorb_$(version "$binary")_$(architecture).deb
  dpkg-deb --root-owner-group -Zxz -z3 --build "$tree" "$package" >&2
  printf '%s\n' "$package"
}

# The Debian version. With a tilde in place of the hyphen, dpkg sorts a pre-release before its
# release.
version() { "$1" --version | sed -e 's/^zorb //' -e 's/-/~/'; }

architecture() { dpkg --print-architecture; }

install_files() {
  local binary=$1 tree=$2 doc=$2/usr/share/doc/zorb shell
  umask 022
  install -D -m 0755 "$binary" "$tree/usr/bin/zorb"
  install -D -m 0644 -t "$tree/usr/lib/systemd/system" "$root/packaging/zorb.service" \
    "$root/packaging/zorb-backup.service" "$root/packaging/zorb-backup.timer"
  install -D -m 0644 "$root/packaging/zorb.toml" "$tree/etc/zorb/zorb.toml"

  mkdir -p "$tree/usr/share/man/man1"
  "$binary" man-pages "$tree/usr/share/man/man1"
  gzip -9n "$tree"/usr/share/man/man1/*.1
  mkdir -p "$tree/usr/share/bash-completion/completions" "$tree/usr/share/zsh/vendor-completions" \
    "$tree/usr/share/fish/vendor_completions.d"
  for shell in bash zsh fish; do
    "$binary" completions "$shell" >"$scratch/$shell"
  done
  install -m 0644 "$scratch/bash" "$tree/usr/share/bash-completion/completions/zorb"
  install -m 0644 "$scratch/zsh" "$tree/usr/share/zsh/vendor-completions/_zorb"
  install -m 0644 "$scratch/fish" "$tree/usr/share/fish/vendor_completions.d/zorb.fish"

  install -d -m 0755 "$doc"
  install -m 0644 "$root/packaging/README.Debian" "$root/config/default.toml" "$doc"
  install -m 0644 "$root/config/nginx.conf" "$root/config/Caddyfile" "$doc"
  install -m 0644 "$root/docs/alerts.yml" "$root/docs/grafana.json" "$doc"
  gzip -9n <"$root/CHANGELOG.md" >"$doc/changelog.gz"
  {
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
    printf 'Upstream-Name: zorb\n\nFiles: *\nCopyright: the zorb authors\nLicense: Expat or Apache-2.0\n\n'
    printf 'License: Expat\n'
    sed -e 's/^$/./' -e 's/^/ /' "$root/LICENSE-MIT"
    printf '\nLicense: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n'
  } >"$doc/copyright"
  find "$tree" -type d -exec chmod 0755 {} +
  find "$tree" -type f ! -path "$tree/usr/bin/*" -exec chmod 0644 {} +
}

control() {
  local binary=$1 tree=$2 libc
  # The newest version of the C library that a symbol of the binary needs.
  libc=$(grep -aoE 'GLIBC_2\.[0-9]+(\.[0-9]+)?' "$binary" | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  [[ -n $libc ]] || die "$binary names no version of the C library"
  mkdir -p "$tree/DEBIAN"
  cat >"$tree/DEBIAN/control" <<CONTROL
Package: zorb
Version: $(version "$binary")
Architecture: $(architecture)
Maintainer: the zorb authors <zorb@localhost>
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f1)
Depends: libc6 (>= $libc), libgcc-s1, passwd
Recommends: ca-certificates
Section: net
Priority: optional
Description: self-hosted content-addressed store for the Xet protocol
 Stores large files that change a little at a time, like model weights and
 datasets: clients cut them into chunks by content and send what is new. zorb
 verifies every byte, stores it durably and serves ranges of it.
CONTROL
  printf '/etc/zorb/zorb.toml\n' >"$tree/DEBIAN/conffiles"
  (cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
  install -m 0755 "$root/packaging/postinst" "$root/packaging/prerm" "$root/packaging/postrm" "$tree/DEBIAN/"
}

main "$@"
