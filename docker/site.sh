#!/bin/sh
# What the container of a site does as root: it gives its network the delay and rate of its line (WAN), makes a Unix user
# job-NAME for each NAME in /etc/gridweave/users, starts the launcher, which runs jobs as these users, and becomes the
# site's service, a user without any right of root's.
set -eu
if [ -n "${WAN:-}" ]; then
  setpriv --inh-caps=-all --bounding-set=-all,+net_admin -- run-wan $WAN &
fi
mkdir -p /run/gridweave
file=/run/gridweave/launcher.toml
printf 'service = "gridweave"\nsocket = "/run/gridweave/launcher.sock"\n[users]\n' > "$file"
number=20000
while read -r name || [ -n "$name" ]; do
  case $name in
    "" | "#"*) continue ;;
    *[!a-z0-9_-]*)
      echo "/etc/gridweave/users: $name: a name has small letters, digits, hyphens and underscores" >&2
      exit 1
      ;;
  esac
  number=$((number + 1))
  id -u "job-$name" > /dev/null 2>&1 ||
    useradd --uid "$number" --no-create-home --home-dir / --shell /bin/sh "job-$name"
  printf '%s = "job-%s"\n' "$name" "$name" >> "$file"
done < /etc/gridweave/users
# Users of jobs pass through to their own folders, and see nothing on the way.
setpriv --reuid=gridweave --regid=gridweave --clear-groups -- chmod 0711 /var/lib/gridweave
(while :; do
  setpriv --inh-caps=-net_admin --bounding-set=-net_admin -- python -P -m gridweave.site.machine.launcher "$file" || true
  sleep 1
done) &
exec setpriv --reuid=gridweave --regid=gridweave --clear-groups --inh-caps=-all --bounding-set=-all -- gridweave "$@"
