#!/bin/sh
# Make the secrets of docker-compose.yml, each in a file of docker/secrets; those that are there keep what they say.
# Each file can be read by one user alone, that of the container which it is for (0400), in a folder that is closed to
# others. So this needs root.
set -eu
folder=${1:-$(dirname "$0")/secrets}
if [ "$(id -u)" != 0 ]; then
  echo "$0: a secret belongs to the user of the container that reads it, which root alone can say: sudo $0" >&2
  exit 1
fi
umask 077
mkdir -p "$folder"
chmod 0711 "$folder"
make() { # $1: the user; then the names
  user=$1
  shift
  for name in "$@"; do
    if [ ! -s "$folder/$name" ]; then
      # Written elsewhere first: half a secret would be one.
      od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$folder/.$name.new"
      mv -f "$folder/.$name.new" "$folder/$name"
    fi
    chown "$user" "$folder/$name"
    chmod 0400 "$folder/$name"
  done
}
make 10001 grid_operator alpha_operator beta_operator gamma_operator \
  alpha_to_grid beta_to_grid gamma_to_grid grid_to_alpha grid_to_beta grid_to_gamma
# Two containers read each of these, with users of their own: each gets a file of the same words.
make 10001 grid_scraper alpha_scraper beta_scraper gamma_scraper db_password
for shared in "65534 grid_scraper prometheus" "65534 alpha_scraper prometheus" "65534 beta_scraper prometheus" \
  "65534 gamma_scraper prometheus" "10002 db_password db"; do
  set -- $shared
  cp "$folder/$2" "$folder/.$2.new"
  chown "$1" "$folder/.$2.new"
  chmod 0400 "$folder/.$2.new"
  mv -f "$folder/.$2.new" "$folder/$2_of_$3"
done
make 472 grafana_password
