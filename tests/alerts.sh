#!/usr/bin/env bash
# Checks docs/alerts.yml with promtool, which Debian has in its package prometheus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
promtool check rules ../docs/alerts.yml
promtool test rules alerts.yml
