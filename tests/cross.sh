#!/usr/bin/env bash
# Does zorb compile for the systems that the README says it is compiled for? And does what stands for the calls of Linux
# elsewhere (src/runtime/system/portable.rs) do the same? The former is `cargo check`: nothing is linked and nothing of it runs.
#
#   tests/cross.sh [TARGET...]
#
# TARGET is aarch64-apple-darwin, aarch64-unknown-linux-gnu (the default is both), or `portable` for the tests alone.
#
# Needs rustup, for the standard libraries of the targets, and zig as their C compiler: $ZIG, or the package `ziglang` of PyPI, which
# needs python3 with venv. Exit code 0: everything was checked. 1: something does not compile, or a test failed. 3: nothing
# failed, but a target was not checked because its standard library cannot be installed here; the last lines name it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly ZIG_VERSION=0.17.1

out=${CARGO_TARGET_DIR:-target}/cross
not_checked=()
zig=()

say() { printf 'cross [%4ds]: %s\n' "$SECONDS" "$*"; }
die() {
  printf 'cross [%4ds]: FAILED: %s\n' "$SECONDS" "$*" >&2
  exit 1
}

main() {
  local target targets=("$@")
  (($# > 0)) || targets=(aarch64-apple-darwin aarch64-unknown-linux-gnu portable)
  mkdir -p "$out"
  out=$(realpath "$out")
  for target in "${targets[@]}"; do
    case $target in
      aarch64-apple-darwin) check "$target" aarch64-macos ;;
      aarch64-unknown-linux-gnu) check "$target" aarch64-linux-gnu ;;
      portable) portable ;;
      *) die "unknown target '$target'" ;;
    esac
  done
  ((${#not_checked[@]} == 0)) || {
    say "NOT CHECKED: ${not_checked[*]}: the standard library cannot be installed here"
    exit 3
  }
  say "passed: ${targets[*]}"
}

# check TARGET ZIG_TARGET
check() {
  local target=$1 variable=${1//-/_}
  if ! has_std "$target"; then
    say "$target: NOT CHECKED: its standard library is not here, and 'rustup target add $target' failed"
    not_checked+=("$target")
    return
  fi
  find_zig
  compiler "$target" "$2"
  say "$target: cargo check with $("${zig[@]}" version) as the C compiler"
  # SDKROOT: else xcrun is asked, which only macOS has. The headers are zig's.
  env "CC_$variable=$out/cc-$target" "AR_$variable=$out/ar" SDKROOT=/ \
    cargo check --locked --quiet --lib --bins --target "$target" || die "$target does not compile"
  say "$target: compiles"
}

has_std() {
  local library=lib/rustlib/$1/lib
  [[ -d $(rustc --print sysroot)/$library ]] && return
  command -v rustup >/dev/null && rustup target add "$1" >"$out/rustup.log" 2>&1 &&
    [[ -d $(rustc --print sysroot)/$library ]] && return
  [[ ! -s $out/rustup.log ]] || tail -n 3 "$out/rustup.log" >&2
  return 1
}

find_zig() {
  ((${#zig[@]} == 0)) || return 0
  if [[ -n ${ZIG:-} ]]; then
    zig=("$ZIG")
  else
    local venv=$out/venv
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "ziglang==$ZIG_VERSION" || die "ziglang $ZIG_VERSION cannot be installed; name a zig in ZIG"
    zig=("$venv/bin/python" -m ziglang)
  fi
  "${zig[@]}" version >/dev/null || die "${zig[*]} does not run"
}

# compiler TARGET ZIG_TARGET: a C compiler and an archiver as the `cc` crate calls them.
compiler() {
  local words
  words=$(printf '%q ' "${zig[@]}")
  # What names the target in words of clang or of Apple is left out: zig has its own. Nothing of it runs, so it is not optimised.
  cat >"$out/cc-$1" <<WRAPPER
#!/usr/bin/env bash
arguments=()
while ((\$# > 0)); do
  case \$1 in
    --target=* | -mmacosx-version-min=* | -O*) ;;
    -target | -arch | -isysroot) shift ;;
    *) arguments+=("\$1") ;;
  esac
  shift
done
exec $words cc -target $2 -O0 "\${arguments[@]}"
WRAPPER
  printf '#!/usr/bin/env bash\nexec %s ar "$@"\n' "$words" >"$out/ar"
  chmod +x "$out/cc-$1" "$out/ar"
}

# The library's tests of what touches files, compiled as for a system that has none of the calls of Linux.
portable() {
  say "portable: tests of files with --cfg zorb_portable"
  local binary
  # For this crate only, so that what it depends on is compiled once.
  binary=$(cargo rustc --locked --package zorb --lib --profile test --message-format=json -- --cfg zorb_portable |
    python3 -c '
import json, sys
paths = [message.get("executable") for message in map(json.loads, sys.stdin) if message["reason"] == "compiler-artifact"]
print([path for path in paths if path][-1])')
  "$binary" --quiet runtime:: blob:: || die "a test fails with --cfg zorb_portable"
}

main "$@"
