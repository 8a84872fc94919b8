# For a shell of the host, in the folder of the project:  . docker/client.sh
# `gridweave` is then the command in the container of the grid, and `gridweave_at SITE` that in the container of a site:
# each asks the gateway there, as its operator, and jobs are those of the user operator. Files that it reads or writes are those in the container.

_gridweave_compose() {
  if docker compose version > /dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

gridweave_at() {
  _gridweave_service=$1
  shift
  _gridweave_compose exec -T --user gridweave "$_gridweave_service" sh -c \
    'export GRIDWEAVE_URL=http://127.0.0.1:8765; GRIDWEAVE_TOKEN=$(cat "/run/secrets/$1_operator"); export GRIDWEAVE_TOKEN LOGNAME=operator; shift; exec gridweave "$@"' \
    gridweave "$_gridweave_service" "$@"
}

gridweave() { gridweave_at grid "$@"; }
