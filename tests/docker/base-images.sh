#!/usr/bin/env bash
# Makes stand-ins for the base images of the Dockerfile out of what this machine has, for a
# machine with a container engine but no image registry. README.md beside this file says more.
#
#   tests/docker/base-images.sh [--force] [cluster]
#
# With `cluster` it makes stand-ins for the images of PostgreSQL and Caddy in compose.cluster.yml, too.
#
# Environment (defaults in brackets):
#   ZORB_RUNTIME_IMAGE  name of the runtime stand-in  [zorb-base/runtime:local]
#   ZORB_BUILD_IMAGE    name of the build stand-in    [zorb-base/build:local]
#   POSTGRES_IMAGE      name of the one of PostgreSQL [zorb-base/postgres:local]
#   CADDY_IMAGE         name of the one of Caddy      [zorb-base/caddy:local]
#   SUITE               Debian suite                  [bookworm]
#   MIRROR              where mmdebstrap downloads    [what apt on this machine uses for SUITE]
#   VENDOR_DIR          crates vendored already       [made by `cargo vendor` from Cargo.lock]
#   RUST_SYSROOT        Rust toolchain to copy        [rustc --print sysroot]
#   TMPDIR              needs about 4 GB for a while  [/tmp]
#
# An image that was made from the same inputs is left as it is; --force makes all of them anew.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)

runtime_image=${ZORB_RUNTIME_IMAGE:-zorb-base/runtime:local}
build_image=${ZORB_BUILD_IMAGE:-zorb-base/build:local}
# Everything of the build stand-in but the crates. Cargo.lock changes often, a toolchain seldom.
toolchain_image=${build_image%:*}-toolchain:${build_image##*:}
postgres_image=${POSTGRES_IMAGE:-zorb-base/postgres:local}
caddy_image=${CADDY_IMAGE:-zorb-base/caddy:local}
# Debian with the packages of both.
services_image=zorb-base/services:local
suite=${SUITE:-bookworm}

runtime_packages=ca-certificates
service_packages=ca-certificates,caddy,postgresql-15
# What the C parts of the dependencies (SQLite, zstd, ring, jemalloc) are compiled with, and what people
# expect of a Rust build image besides.
build_packages=ca-certificates,gcc,g++,libc6-dev,make,perl-base,pkg-config

force=no
has_cluster=no
# Made on first use: when every image is up to date there is nothing to put in it.
scratch=

say() { printf 'base-images: %s\n' "$*"; }
die() {
  printf 'base-images: %s\n' "$*" >&2
  exit 1
}

main() {
  local argument
  for argument in "$@"; do
    case $argument in
      --force) force=yes ;;
      cluster) has_cluster=yes ;;
      *) die "unknown argument '$argument'; there are --force and cluster" ;;
    esac
  done
  [[ $build_image == *:* && $runtime_image == *:* ]] || die "image names need a tag, like name:tag"
  docker info >/dev/null 2>&1 || die "no container engine responds ('docker info' fails)"
  trap clean_up EXIT

  make_runtime_image
  make_toolchain_image
  make_build_image
  if [[ $has_cluster == yes ]]; then
    make_service_images
  fi
}

clean_up() {
  [[ -z $scratch ]] || rm -rf -- "$scratch"
}

need_scratch() {
  [[ -n $scratch ]] || scratch=$(mktemp -d "${TMPDIR:-/tmp}/zorb-base-images.XXXXXX")
}

# The runtime stand-in: Debian's smallest set of packages, and CA certificates.
make_runtime_image() {
  local inputs
  inputs=$(digest "$(recipe debian_rootfs import_rootfs)" "$suite" "$runtime_packages")
  is_current "$runtime_image" "$inputs" && return
  debian_rootfs runtime "$runtime_packages"
  import_rootfs runtime "$runtime_image" "$inputs" \
    'CMD ["bash"]'
}

# The build stand-in but for the crates: Debian, a C compiler and make, this machine's Rust toolchain.
# Debian's own Rust is older than the one the package asks for.
make_toolchain_image() {
  local sysroot version inputs
  sysroot=${RUST_SYSROOT:-$(rustc --print sysroot)}
  [[ -x $sysroot/bin/rustc && -x $sysroot/bin/cargo ]] ||
    die "$sysroot holds no bin/rustc and bin/cargo; name a toolchain's dir in RUST_SYSROOT"
  [[ $sysroot != /usr && $sysroot != /usr/local ]] ||
    die "the toolchain lies in $sysroot among other things; name a dir of its own in RUST_SYSROOT"
  version=$("$sysroot/bin/rustc" -vV && "$sysroot/bin/cargo" -V)
  inputs=$(digest "$(recipe debian_rootfs import_rootfs copy_toolchain)" \
    "$suite" "$build_packages" "$version")
  is_current "$toolchain_image" "$inputs" && return
  debian_rootfs build "$build_packages"
  copy_toolchain "$sysroot" "$scratch/build/opt/rust"
  import_rootfs build "$toolchain_image" "$inputs" \
    'ENV PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    'ENV CARGO_HOME=/usr/local/cargo' \
    'CMD ["bash"]'
}

# The build stand-in: the toolchain, every crate of Cargo.lock, and a cargo configuration that
# takes crates from there. The Dockerfile needs no change, and its build no network.
make_build_image() {
  local inputs
  inputs=$(digest "$(recipe make_build_image)" "$(image_id "$toolchain_image")" \
    "$(<"$root/Cargo.lock")")
  is_current "$build_image" "$inputs" && return
  need_scratch
  local context=$scratch/crates
  mkdir -p "$context/cargo"
  if [[ -n ${VENDOR_DIR:-} ]]; then
    say "copying the crates of VENDOR_DIR"
    cp -a -- "$VENDOR_DIR" "$context/cargo/vendor"
  else
    say "collecting the crates of Cargo.lock (cargo vendor)"
    cargo vendor --quiet --locked --versioned-dirs \
      --manifest-path "$root/Cargo.toml" "$context/cargo/vendor" >/dev/null
  fi
  cat >"$context/cargo/config.toml" <<'CONFIG'
[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "/usr/local/cargo/vendor"

[net]
offline = true
CONFIG
  printf 'FROM %s\nCOPY cargo /usr/local/cargo\n' "$toolchain_image" >"$context/Dockerfile"
  say "building $build_image ($(find "$context/cargo/vendor" -mindepth 1 -maxdepth 1 | wc -l) crates)"
  if ! docker build --force-rm --label "zorb.inputs=$inputs" --tag "$build_image" "$context" \
    >"$scratch/build.log" 2>&1; then
    tail -n 20 "$scratch/build.log" >&2
    die "docker build failed"
  fi
  rm -rf -- "$context"
}

# The stand-ins for PostgreSQL and Caddy: Debian's packages, and what compose.cluster.yml uses of the
# official images: their paths, signals and variables.
make_service_images() {
  local inputs
  inputs=$(digest "$(recipe debian_rootfs import_rootfs make_service_images service_image)" "$suite" "$service_packages" \
    "$(<"$here/postgres.sh")")
  is_current "$postgres_image" "$inputs" && is_current "$caddy_image" "$inputs" && return
  debian_rootfs services "$service_packages"
  install -m 0755 "$here/postgres.sh" "$scratch/services/usr/local/bin/postgres.sh"
  import_rootfs services "$services_image" "$inputs" \
    'CMD ["bash"]'
  service_image "$postgres_image" "$inputs" \
    'STOPSIGNAL SIGINT' 'VOLUME /var/lib/postgresql/data' 'CMD ["postgres.sh"]'
  service_image "$caddy_image" "$inputs" \
    'CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile"]'
}

# service_image IMAGE INPUTS INSTRUCTION...: IMAGE is the one with both packages, and these instructions.
service_image() {
  local image=$1 inputs=$2
  shift 2
  if ! printf '%s\n' "FROM $services_image" "$@" |
    docker build --label "zorb.inputs=$inputs" --tag "$image" - >"$scratch/build.log" 2>&1; then
    tail -n 20 "$scratch/build.log" >&2
    die "docker build failed"
  fi
}

# debian_rootfs NAME PACKAGES: a Debian file tree in $scratch/NAME.
debian_rootfs() {
  local name=$1 packages=$2 mirror
  install_mmdebstrap
  need_scratch
  mirror=${MIRROR:-$(apt_mirror)}
  [[ -n $mirror ]] || die "apt on this machine has no source for Debian; name one in MIRROR"
  use_apt_proxy
  say "mmdebstrap: Debian $suite with $packages"
  if ! mmdebstrap --mode=root --variant=minbase --include="$packages" \
    "$suite" "$scratch/$name" "$mirror" >"$scratch/mmdebstrap.log" 2>&1; then
    tail -n 20 "$scratch/mmdebstrap.log" >&2
    die "mmdebstrap failed"
  fi
  # Of this machine, not of the image: name resolution, the host's name. Of no use in an image:
  # package lists and archives, translations, manuals. Licences stay.
  rm -rf -- "$scratch/$name"/{etc/resolv.conf,etc/hostname} \
    "$scratch/$name"/var/{cache/apt,lib/apt/lists,log}/* \
    "$scratch/$name"/usr/share/{info,locale,man}/*
  find "$scratch/$name/usr/share/doc" ! -type d ! -name copyright -delete
}

# import_rootfs NAME IMAGE INPUTS INSTRUCTION...: $scratch/NAME becomes IMAGE, one layer.
import_rootfs() {
  local name=$1 image=$2 inputs=$3 instruction
  local changes=(--change "LABEL zorb.inputs=$inputs")
  shift 3
  for instruction in "$@"; do
    changes+=(--change "$instruction")
  done
  say "importing $image ($(du -sh "$scratch/$name" | cut -f1))"
  # The engine provides /dev, /proc and /sys; device nodes of mmdebstrap's would only be in the way.
  tar -C "$scratch/$name" --numeric-owner \
    --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . |
    docker import "${changes[@]}" - "$image" >/dev/null
  rm -rf -- "${scratch:?}/$name"
}

# copy_toolchain SYSROOT DIR: what compiles; not the documentation, not other targets.
copy_toolchain() {
  local sysroot=$1 dir=$2 host
  host=$("$sysroot/bin/rustc" -vV | sed -n 's/^host: //p')
  say "copying the Rust toolchain ($("$sysroot/bin/rustc" -V))"
  mkdir -p "$dir/bin" "$dir/lib/rustlib"
  cp -a -- "$sysroot"/bin/{rustc,cargo} "$dir/bin/"
  find "$sysroot/lib" -mindepth 1 -maxdepth 1 ! -name rustlib -exec cp -a -t "$dir/lib" {} +
  cp -a -- "$sysroot/lib/rustlib/$host" "$dir/lib/rustlib/"
}

install_mmdebstrap() {
  command -v mmdebstrap >/dev/null && return
  say "installing mmdebstrap"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
}

# The address from which apt on this machine takes the suite, or failing that any Debian suite.
apt_mirror() {
  # The dollars are apt's.
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v suite="$suite" '
      $3 != "main" || $1 ~ /security/ { next }
      $2 == suite && exact == "" { exact = $1 }
      any == "" { any = $1 }
      END { print exact == "" ? any : exact }'
}

# mmdebstrap has a configuration of apt of its own; where apt goes through a proxy, so must it.
use_apt_proxy() {
  local proxy=
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  if [[ -n $proxy && -z ${http_proxy:-} ]]; then
    export http_proxy=$proxy
  fi
}

# is_current IMAGE INPUTS: was IMAGE made from these very inputs?
is_current() {
  local image=$1 inputs=$2 label
  [[ $force == no ]] || return 1
  label=$(docker image inspect --format '{{index .Config.Labels "zorb.inputs"}}' "$image" 2>/dev/null) ||
    return 1
  [[ $label == "$inputs" ]] || return 1
  say "$image is up to date"
}

image_id() { docker image inspect --format '{{.Id}}' "$1"; }

# recipe FUNCTION...: how an image is made is one of its inputs; an edited comment is not.
recipe() { declare -f "$@"; }

digest() { printf '%s\n' "$(uname -m)" "$@" | sha256sum | cut -d' ' -f1; }

main "$@"
