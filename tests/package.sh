#!/usr/bin/env bash
# Installs the Debian package into a fresh Debian with systemd, starts the unit as it is, does what README.Debian says, and looks
# at what the kernel says of the confinement; then an upgrade, a removal and a purge.
#
#   tests/package.sh [BINARY]
#
# BINARY is what packaging/deb.sh makes the package of: by default it builds target/release/zorb.
#
# Needs root and dpkg-deb; mmdebstrap, which it installs; and the right to make namespaces and control groups,
# because a systemd of its own is process 1 of them. It has a network of its own and touches nothing of this machine's services.
# Where that right is missing the package is installed into the new Debian and everything but the unit is tested; the script says so
# and exits with 3.
#
# Environment (defaults in brackets): SUITE [bookworm], MIRROR [http://deb.debian.org/debian].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suite=${SUITE:-bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}
scratch=
# The new Debian, the process 1 in there, as this machine counts it, and its control group.
root=
init=
cgroup=
# The hash of a file that was pushed, and the token for it.
pushed=
pushed_token=

say() { printf 'package test [%4ds]: %s\n' "$SECONDS" "$*"; }
die() {
  printf 'package test [%4ds]: FAILED: %s\n' "$SECONDS" "$*" >&2
  exit 1
}

main() {
  [[ $(id -u) == 0 ]] || die "needs root"
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/zorb-package.XXXXXX")
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM

  local package
  package=$(packaging/deb.sh "${1:-}" "$scratch")
  say "$(basename "$package"): $(stat -c %s "$package") bytes"
  check_contents "$package"
  make_debian
  check_unit
  if ! boot; then
    in_chroot "$package"
    say "NOT CHECKED: the unit under systemd, which cannot run here as process 1 of a namespace"
    exit 3
  fi
  install_package "$package"
  first_steps
  check_confinement
  reload_and_restart
  nightly_backup
  upgrade "$package"
  remove_package
  say "passed"
}

clean_up() {
  local code=$?
  trap - EXIT
  if [[ -n $init ]]; then
    if [[ $code != 0 ]]; then
      echo "--- the journal" >&2
      inside journalctl --no-pager --lines 60 >&2 || true
      inside systemctl status --no-pager --full zorb >&2 || true
    fi
    # With process 1 all others of the namespace end, and its mounts with them.
    kill -9 "$init" 2>/dev/null || true
    wait 2>/dev/null || true
  fi
  # What systemd has made in its control group, from the innermost on.
  [[ -z $cgroup ]] || find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
  rm -rf --one-file-system -- "$scratch"
  exit "$code"
}

check_contents() {
  local tree=$scratch/tree name
  dpkg-deb --extract "$1" "$tree"
  for name in usr/bin/zorb usr/lib/systemd/system/zorb.service \
    usr/lib/systemd/system/zorb-backup.service usr/lib/systemd/system/zorb-backup.timer etc/zorb/zorb.toml \
    usr/share/man/man1/zorb.1.gz usr/share/man/man1/zorb-serve.1.gz usr/share/man/man1/zorb-token-issue.1.gz \
    usr/share/bash-completion/completions/zorb usr/share/zsh/vendor-completions/_zorb \
    usr/share/fish/vendor_completions.d/zorb.fish usr/share/doc/zorb/copyright usr/share/doc/zorb/changelog.gz \
    usr/share/doc/zorb/README.Debian usr/share/doc/zorb/default.toml usr/share/doc/zorb/alerts.yml \
    usr/share/doc/zorb/grafana.json; do
    [[ -s $tree/$name ]] || die "the package has no $name"
  done
  bash -n "$tree/usr/share/bash-completion/completions/zorb" || die "the completions for bash are not bash"
  zcat "$tree/usr/share/man/man1/zorb.1.gz" | grep -q '^\.TH zorb 1' || die "zorb.1 is no manual page"
  [[ -z $(find "$tree" -perm /022 ! -type l) ]] || die "others may write to files of the package"
  say "manual pages: $(find "$tree/usr/share/man" -type f | wc -l), completions: 3"
}

# What systemd itself says of the unit, without running it.
check_unit() {
  local exposure
  install -D -m 0644 packaging/zorb.service "$root/root/zorb.service"
  exposure=$(chroot "$root" systemd-analyze security --offline=true --no-pager /root/zorb.service | tail -n 1)
  say "systemd-analyze security: ${exposure#→ }"
  chroot "$root" systemd-analyze security --offline=true --no-pager --threshold=20 /root/zorb.service >/dev/null ||
    die "the unit is more exposed than 2.0"
}

# A Debian with systemd and nothing of ours. A copy of it stays for the next run.
make_debian() {
  local kept=${CARGO_TARGET_DIR:-target}/package/debian-$suite.tar
  root=$scratch/debian
  mkdir -p "$(dirname "$kept")" "$root"
  if [[ -s $kept ]]; then
    tar -C "$root" --numeric-owner -xpf "$kept"
    return
  fi
  if ! command -v mmdebstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
  fi
  say "mmdebstrap: Debian $suite with systemd"
  mmdebstrap --mode=root --variant=minbase --include=systemd,systemd-sysv,dbus,util-linux "$suite" "$root" "$mirror" \
    >"$scratch/mmdebstrap.log" 2>&1 || {
    tail -n 20 "$scratch/mmdebstrap.log" >&2
    die "mmdebstrap"
  }
  tar -C "$root" --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf "$kept.new" .
  mv "$kept.new" "$kept"
}

# What runs in the new namespaces, in words of sh: the file systems that systemd wants to find, then systemd.
# shellcheck disable=SC2016
in_namespaces='
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
  touch "dev/$name"
  mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
if [ "$2" = v2 ]; then
  mount -t cgroup2 cgroup2 sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
  mkdir sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
# Not chroot, in which the kernel makes no user namespaces (PrivateUsers).
pivot_root . mnt
umount -l /mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=journal --show-status=0
'

# Starts systemd in namespaces of its own; fails where there can be none.
boot() {
  local hierarchy=v2 parent=/sys/fs/cgroup outer state=none _
  if [[ ! -e $parent/cgroup.controllers ]]; then
    hierarchy=v1 parent=/sys/fs/cgroup/systemd
  fi
  mkdir "$parent/zorb-test-$$" 2>"$scratch/boot.log" || return 1
  cgroup=$parent/zorb-test-$$
  (
    echo "$BASHPID" >"$cgroup/cgroup.procs"
    exec unshare --mount --pid --fork --uts --ipc --net --cgroup sh -c "$in_namespaces" sh "$root" "$hierarchy"
  ) </dev/null >"$scratch/boot.log" 2>&1 &
  outer=$!
  for _ in {1..120}; do
    kill -0 "$outer" 2>/dev/null || break
    [[ -n $init ]] || init=$(pgrep --parent "$outer" | head -n 1)
    [[ -z $init ]] || state=$(inside systemctl is-system-running 2>/dev/null || true)
    [[ $state != running && $state != degraded ]] || break
    sleep 0.5
  done
  if [[ $state != running && $state != degraded ]]; then
    tail -n 10 "$scratch/boot.log" >&2
    [[ -z $init ]] || kill -9 "$init" 2>/dev/null || true
    init=
    return 1
  fi
  inside ip link set lo up 2>/dev/null || nsenter --target "$init" --net ip link set lo up || die "no loopback"
  say "systemd $(inside systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p') runs: $state"
}

inside() { nsenter --target "$init" --all --root --wd env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

install_package() {
  local text
  cp "$1" "$root/root/zorb.deb"
  text=$(inside dpkg --install /root/zorb.deb 2>&1) || die "dpkg: $text"
  [[ $text == *"systemctl enable --now zorb"* ]] || die "the installation does not say how to go on: $text"
  ! inside systemctl is-active --quiet zorb || die "the installation has started the server"
  [[ $(inside getent passwd zorb) == *:/var/lib/zorb:/usr/sbin/nologin ]] || die "no user zorb"
}

# step N: the command of that step of README.Debian, as it is written there.
step() { inside sed -n "/^$1\\. /,/^$(($1 + 1))\\. /s/^    //p" /usr/share/doc/zorb/README.Debian | head -n 1; }

first_steps() {
  local token hash
  say "1: $(step 1)"
  inside sh -c "$(step 1)" || die "step 1 of README.Debian"
  is_ready
  say "2: $(step 2)"
  token=$(inside sh -c "$(step 2)") || die "step 2 of README.Debian"
  [[ $token == zorb_* ]] || die "this is no token: $token"
  inside sh -c 'head -c 3000000 /dev/urandom >/tmp/file; chmod a+r /tmp/file'
  # Without a token nothing, with it there and back, as a user that is not the service's.
  ! as_nobody "" push /tmp/file 2>"$scratch/refused" || die "a push without a token"
  hash=$(as_nobody "$token" push --quiet /tmp/file && as_nobody "$token" push --json /tmp/file | grep -oE '[0-9a-f]{64}' | head -n 1)
  [[ ${#hash} == 64 ]] || die "a push with the token of step 2"
  pushed=$hash pushed_token=$token
  pulls
  say "a push and a pull with the token of README.Debian"
}

# as_nobody TOKEN ARGUMENT...
as_nobody() {
  local token=$1
  shift
  inside install -d -o nobody /tmp/back
  inside runuser -u nobody -- env "ZORB_TOKEN=$token" ZORB_SERVER=http://127.0.0.1:8080 XDG_CACHE_HOME=/tmp/back zorb "$@"
}

is_ready() {
  local _
  for _ in {1..50}; do
    ! inside zorb healthcheck --quiet 2>/dev/null || return 0
    sleep 0.2
  done
  die "the server is not ready"
}

# main_status FIELD: what the kernel says of the server.
main_status() { inside sh -c "sed -n 's/^$1:[[:space:]]*//p' /proc/\$(systemctl show --value -p MainPID zorb)/status"; }

check_confinement() {
  local pid files
  pid=$(inside systemctl show --value -p MainPID zorb)
  [[ $(main_status Uid) == "$(inside id -u zorb)"* ]] || die "it does not run as zorb"
  [[ $(main_status NoNewPrivs) == 1 ]] || die "NoNewPrivileges is not in force"
  [[ $(main_status Seccomp) == 2 ]] || die "SystemCallFilter is not in force"
  [[ $(main_status CapEff) == 0000000000000000 && $(main_status CapBnd) == 0000000000000000 ]] || die "it has capabilities"
  # Its own view of the file system, through the mount namespace of the process.
  inside nsenter --mount --target "$pid" -- sh -ec '
    ! touch /usr/x /etc/x /var/x 2>/dev/null
    ! ls -A /home /root 2>/dev/null | grep -q .
    test ! -e /dev/sda' || die "its file system is not read-only"
  [[ $(inside stat -c '%a %U' /var/lib/zorb) == "750 zorb" ]] || die "the data directory: $(inside stat -c '%a %U' /var/lib/zorb)"
  [[ $(inside stat -c '%a %U' /var/lib/zorb/keys) == "600 zorb" ]] || die "the keys"
  [[ -z $(inside find /var/lib/zorb -perm /077 -type f) ]] || die "others have access to files of the data directory"
  # Where this script may not raise the limit, neither may its systemd.
  files=$(($(ulimit -Hn) < 65536 ? $(ulimit -Hn) : 65536))
  [[ $(inside sh -c "sed -n 's/^Max open files *//p' /proc/$pid/limits") == "$files"* ]] || die "LimitNOFILE"
  ! inside journalctl --unit zorb --no-pager --output cat | grep -E 'WARN|ERROR' || die "warnings in the journal"
  say "runs as zorb: no capability, no new privileges, system calls filtered, everything but its directories read-only"
}

reload_and_restart() {
  local pid
  pid=$(inside systemctl show --value -p MainPID zorb)
  inside systemctl reload zorb
  is_ready
  [[ $(inside systemctl show --value -p MainPID zorb) == "$pid" ]] || die "a reload has ended the server"
  inside systemctl restart zorb
  is_ready
  [[ $(inside systemctl show --value -p Result zorb) == success ]] || die "the stop did not end well"
  pulls
  # A server that dies comes back.
  inside systemctl kill --signal=KILL zorb
  sleep 3
  is_ready
  pulls
  say "reload, restart, and kill -9: the file is there"
}

pulls() {
  inside rm -f /tmp/back/file
  as_nobody "$pushed_token" pull --quiet "$pushed" -o /tmp/back/file || die "a pull"
  inside cmp /tmp/file /tmp/back/file || die "other bytes came back"
}

# The commands of docs/install.md, with the units of the package. The directory of node_exporter, which
# a machine may lack, is there for the second run only.
nightly_backup() {
  local section marker=/var/lib/prometheus/node-exporter/zorb-backup.prom
  section=$(sed -n '/^## Nightly backup$/,/^## /p' docs/install.md)
  awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' <<<"$section" >"$root/root/nightly-backup.sh"
  [[ -s $root/root/nightly-backup.sh ]] || die "docs/install.md has no commands for the nightly backup"
  inside sh -ec '. /root/nightly-backup.sh' >"$scratch/nightly-backup" || die "the commands of the nightly backup"
  grep -q 'zorb-backup.timer' "$scratch/nightly-backup" || die "systemctl does not list the timer of the nightly backup"
  inside systemctl is-active --quiet zorb-backup.timer || die "the timer of the nightly backup does not run"
  [[ $(inside stat -c '%a %U' /var/backups/zorb) == "700 zorb" ]] || die "others may read the directory of the archive"
  inside runuser -u zorb -- zorb backup /var/backups/zorb/zorb.rca --verify >/dev/null || die "the nightly backup is damaged"
  ! inside test -e "$marker" || die "the backup has made a directory for node_exporter"
  inside mkdir -p "$(dirname "$marker")"
  inside systemctl start zorb-backup.service || die "the second run of the nightly backup"
  [[ $(inside stat -c %a "$marker") == 644 ]] || die "node_exporter cannot read the time of the backup"
  # Another archive, in a directory that does not exist, as the page says.
  inside sh -c "mkdir /etc/systemd/system/zorb-backup.service.d && printf '[Service]\nEnvironment=ARCHIVE=/srv/backup/zorb.rca\n' \
    >/etc/systemd/system/zorb-backup.service.d/override.conf && systemctl daemon-reload"
  inside systemctl start zorb-backup.service || die "the nightly backup to another archive"
  inside runuser -u zorb -- zorb backup /srv/backup/zorb.rca --verify >/dev/null || die "the other archive is damaged"
  say "the nightly backup of docs/install.md: the timer runs, the archive is verified"
}

upgrade() {
  local before
  before=$(inside systemctl show --value -p MainPID zorb)
  inside sh -c 'echo "# kept" >>/etc/zorb/zorb.toml'
  inside dpkg --install --force-confold /root/zorb.deb >"$scratch/upgrade.log" 2>&1 || die "upgrade: $(<"$scratch/upgrade.log")"
  is_ready
  [[ $(inside systemctl show --value -p MainPID zorb) != "$before" ]] || die "the old server still runs"
  inside grep -q '^# kept' /etc/zorb/zorb.toml || die "the upgrade has replaced the settings"
  pulls
  say "upgrade: restarted, settings kept"
}

remove_package() {
  inside dpkg --remove zorb >/dev/null 2>&1 || die "remove"
  ! inside systemctl is-active --quiet zorb || die "the server runs on"
  ! inside systemctl is-active --quiet zorb-backup.timer || die "the timer of the backup runs on"
  inside test -f /etc/zorb/zorb.toml || die "a removal has taken the settings"
  inside dpkg --purge zorb >/dev/null 2>&1 || die "purge"
  inside test ! -e /etc/zorb/zorb.toml || die "a purge has left the settings"
  inside test -s /var/lib/zorb/index.sqlite || die "a purge has taken the data"
  say "removed and purged; the data are there"
}

# Everything but the unit.
in_chroot() {
  local token
  cp "$1" "$root/root/zorb.deb"
  chroot "$root" dpkg --install /root/zorb.deb || die "dpkg"
  install -d -o "$(chroot "$root" id -u zorb)" -m 0750 "$root/var/lib/zorb"
  chroot "$root" runuser -u zorb -- env ZORB_CONFIG=/etc/zorb/zorb.toml ZORB_DATA_DIR=/var/lib/zorb ZORB_LISTEN=127.0.0.1:0 \
    timeout --signal TERM 5 zorb serve >"$scratch/first-line" || [[ $? == 124 ]] || die "the server does not start"
  grep -q '^zorb listening on http://127.0.0.1:' "$scratch/first-line" || die "the server did not listen"
  token=$(chroot "$root" runuser -u zorb -- zorb token issue --data-dir /var/lib/zorb --scope write --repo models/acme/bert)
  [[ $token == zorb_* ]] || die "no token"
  say "installed into a chroot; the server starts there as zorb"
}

main "$@"
