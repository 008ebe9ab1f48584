#!/usr/bin/env bash
# What the stand-in for the image of PostgreSQL runs: the first time it creates the user, the password
# and the database of the environment, as the official image does. Then it serves.
set -euo pipefail

export PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
if [[ $(id -u) == 0 ]]; then
  install -d -o postgres -g postgres -m 0700 "$PGDATA" /run/postgresql
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0"
fi
if [[ ! -e $PGDATA/PG_VERSION ]]; then
  initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") \
    --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl --wait --options="-c listen_addresses=''" start
  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl --wait stop
fi
exec postgres -c listen_addresses='*'
