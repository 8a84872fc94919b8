#!/bin/sh
# What the container of a site does as root: it makes a Unix user for each name in /etc/gridweave/users, starts the launcher,
# which runs jobs as these users, and becomes the site's service, as a user without any right of root's.
set -eu
number=20000
while read -r name || [ -n "$name" ]; do
  case $name in "" | "#"*) continue ;; esac
  number=$((number + 1))
  id -u "$name" > /dev/null 2>&1 || useradd --uid "$number" --no-create-home --home-dir / --shell /bin/sh "$name"
done < /etc/gridweave/users
mkdir -p /run/gridweave
# Users of jobs pass through to their own folders, and see nothing on the way.
setpriv --reuid=gridweave --regid=gridweave --clear-groups -- chmod 0711 /var/lib/gridweave
(while :; do
  python -P -m gridweave.site.machine.launcher /etc/gridweave/launcher.toml || true
  sleep 1
done) &
exec setpriv --reuid=gridweave --regid=gridweave --clear-groups --inh-caps=-all --bounding-set=-all -- gridweave "$@"
