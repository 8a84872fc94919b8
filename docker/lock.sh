#!/bin/sh
# Write docker/constraints.txt and docker/build-constraints.txt again, from pyproject.toml: the newest releases that its
# ranges allow, with the hashes of their files, for Linux and the image's Python. Needs uv (pip install uv).
set -eu
cd "$(dirname "$0")/.."
compile() {
  uv pip compile "$@" --upgrade --quiet --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
    --generate-hashes --no-header --no-annotate
}
write() { # $1: the file, $2: what it holds
  { printf '# %s, with the hashes of its files (those for other processors, too).\n' "$2"
    printf '# Made by docker/lock.sh, which also renews it; not to be changed by hand.\n'
    cat; } > "$1.new"
  mv "$1.new" "$1"
}
compile pyproject.toml --extra live | write docker/constraints.txt "Everything that gridweave[live] needs in the image"
printf 'setuptools>=77\n' | compile - | write docker/build-constraints.txt "What the wheel is built with"
