#!/usr/bin/env bash
# Checks docs/alerts.yml, and the configuration of docs/alerts.md, with promtool of the Debian package
# prometheus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
promtool check rules ../docs/alerts.yml
promtool test rules alerts.yml

# block TEXT: the yaml block of the page that has this text.
block() {
  awk -v text="$1" '/^```yaml$/ { on = 1; body = ""; next }
    /^```$/ { if (on && index(body, text)) { printf "%s", body; found = 1 } on = 0 }
    on { body = body $0 "\n" }
    END { exit !found }' ../docs/alerts.md
}

# The configuration that Debian installs, edited as the page says: once for HTTP, once for TLS.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp ../docs/alerts.yml "$scratch/zorb-alerts.yml"
touch "$scratch/zorb.token"
openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -keyout "$scratch/key" -out "$scratch/ca.pem" 2>/dev/null
for targets in 127.0.0.1:8080 store.example:8443; do
  {
    grep -vx 'rule_files:' /etc/prometheus/prometheus.yml
    block 'credentials_file'
    [[ $targets == 127.0.0.1:8080 ]] || block 'scheme: https' | grep -v static_configs
    block 'job_name: zorb-probe'
    block 'rule_files:'
  } | sed "s|127.0.0.1:8080|$targets|; s|/etc/prometheus/|$scratch/|" >"$scratch/prometheus.yml"
  promtool check config "$scratch/prometheus.yml"
  grep -q "targets: \[\"$targets\"\]" "$scratch/prometheus.yml"
done
