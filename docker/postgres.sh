#!/bin/sh
# Run PostgreSQL in the foreground. The first time it is made, with one database and its owner, who is no superuser.
# At each start the owner gets the password that the secret holds now, so that a new one needs a restart and no more.
set -eu
PATH="/usr/lib/postgresql/15/bin:$PATH"
data=/var/lib/postgresql/15
password=$(cat "${POSTGRES_PASSWORD_FILE:?names the file of the password}")
quoted=$(printf '%s' "$password" | sed "s/'/''/g")

single() { postgres --single -D "$1" -c log_min_messages=error postgres > /dev/null; }

if [ ! -d "$data" ]; then
  # Elsewhere first: if this is interrupted, it begins again the next time.
  rm -rf "$data.new"
  initdb --pgdata "$data.new" --username postgres --auth-local peer --auth-host scram-sha-256 \
    --encoding UTF8 --locale C.UTF-8 --data-checksums
  printf 'host gridweave gridweave all scram-sha-256\n' >> "$data.new/pg_hba.conf"
  printf '%s\n' "CREATE ROLE gridweave LOGIN" "CREATE DATABASE gridweave OWNER gridweave" | single "$data.new"
  mv "$data.new" "$data"
fi
rm -f "$data/postmaster.pid" # of a container that was killed; nobody else has this volume
printf "ALTER ROLE gridweave PASSWORD '%s'\n" "$quoted" | single "$data"
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql \
  -c password_encryption=scram-sha-256 -c max_connections=50 -c shared_buffers=64MB -c jit=off "$@"
