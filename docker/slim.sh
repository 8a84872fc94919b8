#!/bin/sh
# Leave out of an environment what nothing of gridweave needs, and fix the times of the rest.
# Of Ray: Java, C++ and the libraries above its core, and the pages of its dashboard. Of all: tests, and debug symbols.
set -eu
packages=$(echo "$1"/lib/python3.*/site-packages)
cd "$packages"
rm -rf ray/jars ray/cpp ray/rllib ray/tune ray/train ray/serve ray/data ray/llm ray/dashboard/client/build
rm -rf pip pip-*.dist-info setuptools setuptools-*.dist-info _distutils_hack distutils-precedence.pth
find . -type d \( -name tests -o -name test \) \
  \( -path './numpy/*' -o -path './scipy/*' -o -path './numba/*' -o -path './matplotlib/*' -o -path './networkx/*' \
     -o -path './fontTools/*' -o -path './ray/*' \) -prune -exec rm -rf {} +
find . -name __pycache__ -prune -exec rm -rf {} +
# Not those in NAME.libs, which have been relinked once already: a second change breaks some of them.
for file in ray/_raylet.so ray/core/src/ray/*/* llvmlite/binding/*.so; do
  case $(head -c 4 "$file" 2>/dev/null | tail -c 3) in ELF) strip --strip-unneeded "$file" ;; esac
done
rm -f "$1"/bin/pip* "$1"/bin/f2py "$1"/bin/fonttools "$1"/bin/pyft* "$1"/bin/ttx "$1"/bin/tune "$1"/bin/serve
# Read at each start, by many processes; what is read does not depend on times of files.
"$1"/bin/python -m compileall -q --invalidation-mode unchecked-hash .
find "$1" -exec touch --no-dereference --date=@315532800 {} +
