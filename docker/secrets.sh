#!/bin/sh
# Make the secrets of docker-compose.yml, each in a file of docker/secrets; those that are there stay as they are.
# The folder is closed to other users. The files in it can be read by anybody who reaches them: a container sees those
# that are given to it, and its user is not the one who runs this.
set -eu
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
chmod 0700 "$folder"
for name in db_password operator_token grafana_password \
  alpha_to_grid beta_to_grid gamma_to_grid grid_to_alpha grid_to_beta grid_to_gamma; do
  if [ ! -s "$folder/$name" ]; then
    # Written elsewhere first: half a secret would be one.
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$folder/.$name.new"
    chmod 0444 "$folder/.$name.new"
    mv -f "$folder/.$name.new" "$folder/$name"
  fi
done
